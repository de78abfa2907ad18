"""What can be wrong with a record, in words for people."""

from typing import Final

NOT_UTF8: Final = "NotUtf8"
NOT_JSON: Final = "NotJson"
NO_COMMIT_TS: Final = "NoCommitTs"
NOT_A_ROW_CHANGE: Final = "NotARowChange"
NO_ROW: Final = "NoRow"
WRONG_TABLE: Final = "WrongTable"

PROBLEMS: Final = {
    NOT_UTF8: "the line is not UTF-8",
    NOT_JSON: "the line is not one JSON object (garbage, cut short, or two messages run together)",
    NO_COMMIT_TS: "the message has no commit-ts; set enable-tidb-extension=true in the changefeed's sink URI",
    NOT_A_ROW_CHANGE: "the message is not an INSERT, UPDATE or DELETE",
    NO_ROW: "the message does not hold exactly one row",
    WRONG_TABLE: "the message is of another table than its path",
}
