from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cdc_lakehouse import errors
from cdc_lakehouse.changelog.ddl.clauses import DdlSyntaxError
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


def test_a_subclass_with_fields_of_its_own_survives_too() -> None:
    error = DdlSyntaxError.at("expected a name", "ALTER TABLE\n ,", 13)
    arrived = pickle.loads(pickle.dumps(error))
    assert str(arrived) == str(error)
    assert (arrived.statement_line, arrived.statement_column, arrived.offset) == (2, 2, 13)


TRIED_AGAIN = {"TransientError", "SourceUnreachableError", "ConcurrentRunError"}


@pytest.mark.parametrize("kind", KINDS[1:])
def test_an_error_is_tried_again_or_reported_never_both(kind: type[CdcError]) -> None:
    assert issubclass(kind, TransientError) == (kind.__name__ in TRIED_AGAIN)
    assert issubclass(kind, PermanentError) != issubclass(kind, TransientError)


def test_the_walk_over_the_errors_found_them() -> None:
    assert {"ConfigurationError", "CheckpointError", "ObjectMissingError", *TRIED_AGAIN} <= {k.__name__ for k in KINDS}
