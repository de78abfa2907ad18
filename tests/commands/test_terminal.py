"""What a terminal gets of names and texts of the source."""

from __future__ import annotations

import pytest

from cdc_lakehouse.commands import common
from cdc_lakehouse.commands.run import RunResult, _text


def _said(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    common.say(text)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "escape", ["\x1b[2J", "\x1b]0;title\x07", "\x1b[8m", "\x9b31m", "\r", "\x7f", "\u202e", "\udcff"]
)
def test_no_command_for_a_terminal_goes_through(escape: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"database": "d", "table": f"t{escape}", "ddl": [], "rows": 1}
    counts = dict.fromkeys(("rows_in", "inserts", "updates", "deletes"), 0)
    result = RunResult("f", checkpoint_ts=1, checkpoint_time="x", tables=[{**table, **counts}])
    lines = [_text(result), *common.problem_lines({f"d.{escape}": escape}, 0, [escape], [escape])]

    said = _said("\n".join(lines), capsys)

    assert not any(each in said for each in escape if not each.isprintable())
    assert escape.encode("unicode_escape").decode() in said


def test_text_of_any_language_lines_and_colours_stay(capsys: pytest.CaptureFixture[str]) -> None:
    assert _said("größe 表 😀\nnext", capsys) == "größe 表 😀\nnext\n"
    coloured = common.good("a") + common.bad("b") + common.doubtful("c")
    assert common._NOT_PLAIN.sub(lambda found: found[1] or "", coloured) == coloured
