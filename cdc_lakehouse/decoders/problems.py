"""What can be wrong with a record, in words for people."""

from typing import Final

NOT_UTF8: Final = "NotUtf8"
NOT_JSON: Final = "NotJson"
NOT_CSV: Final = "NotCsv"
FIELD_COUNT: Final = "FieldCount"
NO_COMMIT_TS: Final = "NoCommitTs"
NO_IS_UPDATE: Final = "NoIsUpdate"
NOT_A_ROW_CHANGE: Final = "NotARowChange"
NO_ROW: Final = "NoRow"
WRONG_TABLE: Final = "WrongTable"
NOT_LOOKED_AT: Final = "NotLookedAt"

PROBLEMS: Final = {
    NOT_UTF8: "the record is not UTF-8",
    NOT_JSON: "the line is not one JSON object (garbage, cut short, or two messages run together)",
    NOT_CSV: "the record is not csv as TiCDC writes it (garbage, cut short, a quote that is never closed, text beside "
    "quotes, or a backslash that escapes nothing)",
    FIELD_COUNT: "the record has more or fewer fields than the table's columns and the csv options give",
    NO_COMMIT_TS: "the record has no commit-ts; set enable-tidb-extension=true (canal-json) or include-commit-ts=true "
    "(csv) in the changefeed",
    NO_IS_UPDATE: "the record does not say true or false where is-update stands (csv with output-old-value)",
    NOT_A_ROW_CHANGE: "the record is not an INSERT, UPDATE or DELETE",
    NO_ROW: "the message does not hold exactly one row",
    NOT_LOOKED_AT: "the file went before its records that cannot be used were listed; those that can be used are in",
    WRONG_TABLE: "the record is of another table than its path",
}
