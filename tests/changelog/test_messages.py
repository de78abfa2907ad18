"""Errors of messages say the table that the message is of, as far as it could be read."""

from __future__ import annotations

import pickle

from cdc_lakehouse.changelog.events import MessageError


def test_an_error_keeps_the_table_that_was_known_first() -> None:
    error = MessageError("bad", advice="mend it")
    assert error.of is None and error.table is None
    known = error.within("a.b", "t")
    assert (known.of, known.table, str(known)) == (("a.b", "t"), "a.b.t", "bad [table a.b.t]: mend it")
    assert known.within("other", "x") is known
    assert (error.within("d", None).of, error.within("d", None).table) == (("d", None), None)


def test_an_error_comes_whole_from_another_process() -> None:
    error = MessageError("bad", of=("d", "t"), advice="mend it")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.of, type(again)) == (str(error), error.of, MessageError)
