from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cdc_lakehouse import errors
from cdc_lakehouse.changelog.ddl.tokens import DdlSyntaxError
from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.errors import CdcError, PermanentError, SourceError, TransientError

PLACES: dict[str, Any] = {"feed": "shop", "table": "sales.orders", "segment": "sales/orders/7/CDC1.json", "line": 12}


def kinds(base: type[CdcError] = CdcError) -> Iterator[type[CdcError]]:
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from kinds(kind)


KINDS = [CdcError, *kinds()]


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ({}, "broken"),
        ({"advice": "mend it"}, "broken: mend it"),
        ({"table": "d.t"}, "broken [table d.t]"),
        ({"segment": "s", "line": 0}, "broken [segment s, line 0]"),
        ({"feed": "f", "table": "d.t", "segment": "s", "line": 3, "advice": "mend it"},
         "broken [feed f, table d.t, segment s, line 3]: mend it"),
    ],
)  # fmt: skip
def test_text_says_what_where_and_what_to_do_and_only_what_is_known(places: dict[str, Any], text: str) -> None:
    assert str(SourceError("broken", **places)) == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clone", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_every_error_survives_a_process_boundary(kind: type[CdcError], clone: Callable[[CdcError], CdcError]) -> None:
    error = kind("broken", **PLACES, advice="mend it")
    arrived = clone(error)
    assert type(arrived) is kind
    assert str(arrived) == str(error)
    assert {place: getattr(arrived, place) for place in PLACES} == PLACES
    assert (arrived.message, arrived.advice) == ("broken", "mend it")


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (DdlSyntaxError.at("expected a name", "ALTER TABLE\n ,", 13),
         {"statement_line": 2, "statement_column": 2, "offset": 13}),
        (MessageError("bad", of=("d", "t"), advice="mend it"), {"of": ("d", "t"), "table": "d.t"}),
    ],
)  # fmt: skip
def test_a_subclass_with_fields_of_its_own_survives_too(error: CdcError, fields: dict[str, Any]) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert (str(arrived), type(arrived)) == (str(error), type(error))
    assert {name: getattr(arrived, name) for name in fields} == fields


def test_an_error_of_a_message_keeps_the_table_that_was_known_first() -> None:
    error = MessageError("bad", advice="mend it")
    assert error.of is None and error.table is None
    known = error.within("a.b", "t")
    assert (known.of, known.table, str(known)) == (("a.b", "t"), "a.b.t", "bad [table a.b.t]: mend it")
    assert known.within("other", "x") is known
    assert (error.within("d", None).of, error.within("d", None).table) == (("d", None), None)


TRIED_AGAIN = {
    "TransientError", "SourceUnreachableError", "ConcurrentRunError", "CatalogUnreachableError", "WarehouseFullError",
    "WarehouseUnreachableError", "AlertNotSentError", "EngineError",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS[1:])
def test_an_error_is_tried_again_or_reported_never_both(kind: type[CdcError]) -> None:
    assert issubclass(kind, TransientError) == (kind.__name__ in TRIED_AGAIN)
    assert issubclass(kind, PermanentError) != issubclass(kind, TransientError)


def test_the_walk_over_the_errors_found_them() -> None:
    assert {"ConfigurationError", "CheckpointError", "ObjectMissingError", *TRIED_AGAIN} <= {k.__name__ for k in KINDS}
