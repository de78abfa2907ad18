"""MySQL and TiDB column types, the Iceberg type for each, and the effect of a change of type on values; and the text
of a row, of which checksums are made.

>>> ColumnType.of("INT UNSIGNED", length=10)
ColumnType(name='int', unsigned=True, length=10, scale=None, elements=(), zerofill=False, charset=None)
>>> iceberg_type(ColumnType.of("INT UNSIGNED"))
'long'
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cdc_lakehouse.errors import PermanentError

# Synonyms of the MySQL reference manual ("Numeric Type Syntax", "Using Data Types from Other Database Engines").
SYNONYMS: Final = {
    "integer": "int", "int1": "tinyint", "int2": "smallint", "int3": "mediumint", "middleint": "mediumint",
    "int4": "int", "int8": "bigint", "bool": "tinyint", "boolean": "tinyint", "dec": "decimal",
    "numeric": "decimal", "fixed": "decimal", "real": "double", "double precision": "double",
    "float4": "float", "float8": "double", "character": "char", "char byte": "binary",
    **dict.fromkeys(("char varying", "character varying", "varcharacter"), "varchar"),
    **dict.fromkeys(("nchar", "national char", "national character"), "char"),
    **dict.fromkeys(
        ("nvarchar", "national varchar", "national varcharacter", "national char varying", "national character varying",
         "nchar varying", "nchar varchar", "nchar varcharacter"), "varchar",
    ),
    **dict.fromkeys(
        ("long", "long varchar", "long varcharacter", "long char varying", "long character varying"), "mediumtext"
    ),
    "long varbinary": "mediumblob",
}  # fmt: skip

INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
FLOATS: Final = frozenset({"float", "double"})
TEXTS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BLOBS: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_OF_BYTES: Final = {
    "char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob",
    "mediumtext": "mediumblob", "longtext": "longblob",
}  # fmt: skip
LABELS: Final = frozenset({"enum", "set"})
TEMPORALS: Final = frozenset({"date", "datetime", "timestamp", "time"})
GEOMETRIES: Final = frozenset({
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection",
})  # fmt: skip

_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
MOST_BYTES: Final = {
    "tinytext": 255, "text": 65_535, "mediumtext": 16_777_215, "longtext": 4_294_967_295,
    "tinyblob": 255, "blob": 65_535, "mediumblob": 16_777_215, "longblob": 4_294_967_295,
}  # fmt: skip
BASIC_PLANE: Final = frozenset({"utf8", "utf8mb3", "ucs2"})
_ALL_CHARACTERS: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})

# Escapes in labels, as information_schema prints them.
_ESCAPES: Final = str.maketrans({"\\": r"\\", "'": "''", "\0": r"\0", "\n": r"\n", "\r": r"\r"})

# Iceberg's decimal holds 38 digits, MySQL's 65: larger ones are kept as exact text.
MAX_DECIMAL_PRECISION: Final = 38
DEFAULT_DECIMAL_PRECISION: Final = 10

_ICEBERG: Final = {
    "tinyint": "int", "smallint": "int", "mediumint": "int", "int": "int", "bigint": "long", "year": "int",
    "float": "float", "double": "double", "date": "date", "datetime": "timestamp", "timestamp": "timestamptz",
    "time": "string", "json": "string", "enum": "string", "set": "string", "vector": "list<float>",
    **dict.fromkeys(TEXTS, "string"), **dict.fromkeys(BLOBS, "binary"), **dict.fromkeys(GEOMETRIES, "string"),
}  # fmt: skip


@dataclass(frozen=True)
class ColumnType:
    """A column's type in the source.

    `length` is MySQL's M: digits of a number, characters or bytes of a text, bits of a BIT, dimensions of a VECTOR.
    `scale` is D of a number, or the fractional digits (0 to 6) of a time. `elements` are an ENUM's or SET's labels,
    empty when the source does not give them.
    """

    name: str
    unsigned: bool = False
    length: int | None = None
    scale: int | None = None
    elements: tuple[str, ...] = ()
    zerofill: bool = False
    charset: str | None = None

    @staticmethod
    def of(
        declared: str, *, length: int | None = None, scale: int | None = None, elements: tuple[str, ...] = (),
        charset: str | None = None,
    ) -> ColumnType:  # fmt: skip
        """Return the type for its declaration (`INT UNSIGNED`, `varchar`), in any case, with synonyms resolved."""
        words = declared.lower().split()
        flags = {word for word in words if word in ("unsigned", "signed", "zerofill")}
        name = " ".join(word for word in words if word not in flags)
        if name in ("bool", "boolean"):
            length = 1
        name = SYNONYMS.get(name, name)
        # Schema files may give BIT and YEAR an UNSIGNED without a meaning: neither has a sign.
        unsigned = bool(flags & {"unsigned", "zerofill"}) and name not in ("bit", "year")
        return ColumnType(name, unsigned, length, scale, elements, "zerofill" in flags, charset)

    @property
    def precision(self) -> int:
        """Total digits of a DECIMAL, or bits of a BIT."""
        if self.length is not None:
            return self.length
        return DEFAULT_DECIMAL_PRECISION if self.name == "decimal" else 1

    @property
    def fraction(self) -> int:
        """Digits after the point of a DECIMAL or a time."""
        return self.scale or 0


def of_bytes(kind: ColumnType) -> ColumnType:
    """Return the binary type that a text type in the character set binary is (MySQL, "String Data Type Syntax")."""
    return replace(kind, name=_OF_BYTES[kind.name], charset=None) if kind.name in _OF_BYTES else kind


def iceberg_type(column: ColumnType) -> str:
    """Return the Iceberg type of a column, by its name in the Iceberg specification.

    An unknown type (of a newer server) is kept as text: nothing is lost, and a better type remains possible.
    """
    if column.name == "decimal":
        fits = column.precision <= MAX_DECIMAL_PRECISION
        return f"decimal({column.precision},{column.fraction})" if fits else "string"
    if column.name == "bit":
        return "decimal(20,0)" if column.precision > 63 else "long"
    if column.unsigned and column.name == "int":
        return "long"
    if column.unsigned and column.name == "bigint":
        return "decimal(20,0)"
    return _ICEBERG.get(column.name, "string")


def type_text(column: ColumnType, *, widths: bool = False) -> str:
    """Return the type as MySQL's information_schema.column_type prints it, as far as the source gives it. With `widths`
    it is that of MySQL 8.0.12 for a column as that server keeps it: later versions leave out the display widths of
    integers (except of TINYINT(1)) and of YEAR."""
    text, numbers = column.name, column.length if column.scale is None else f"{column.length},{column.scale}"
    if column.elements:
        labels = ",".join(f"'{label.translate(_ESCAPES)}'" for label in column.elements)
        text += f"({labels})"
    elif widths and (column.name in INTEGERS or column.name == "year" or (column.name in FLOATS and numbers)):
        text += f"({numbers})"
    elif column.name == "decimal":
        text += f"({column.precision},{column.fraction})"
    elif column.name in ("datetime", "timestamp", "time") and column.scale:
        text += f"({column.scale})"
    elif column.name in ("char", "varchar", "binary", "varbinary", "bit", "vector") and column.length is not None:
        text += f"({column.length})"
    elif column.name == "tinyint" and column.length == 1:
        text += "(1)"
    return text + " unsigned" * column.unsigned + " zerofill" * column.zerofill


# --- Changes of a type ---

TypeChange = Literal["none", "widen", "convert"]

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
# Iceberg's type promotions that preserve every value.
_PROMOTIONS: Final = frozenset({("int", "long"), ("float", "double")})


def promotable(current: str, target: str) -> bool:
    """Whether Iceberg can read the values of `current` as `target`, unchanged, without rewriting data files."""
    if (current, target) in _PROMOTIONS:
        return True
    narrow, wide = _DECIMAL.fullmatch(current), _DECIMAL.fullmatch(target)
    return bool(narrow and wide and narrow[2] == wide[2] and int(narrow[1]) <= int(wide[1]))


def type_change(old: ColumnType, new: ColumnType) -> TypeChange:
    """Return `none` when the values and the Iceberg type stay, `widen` when only the Iceberg type changes, else
    `convert`."""
    current, target = iceberg_type(old), iceberg_type(new)
    if _changes_values(old, new):
        return "convert"
    if current == target:
        return "none"
    return "widen" if promotable(current, target) else "convert"


def converts(types: Sequence[ColumnType]) -> bool:
    """Whether values change across the successive types of a column."""
    return any(type_change(old, new) == "convert" for old, new in itertools.pairwise(types))


def _changes_values(old: ColumnType, new: ColumnType) -> bool:
    """Whether the source can change a value. Without strict SQL mode it fits values that are too large or too long to
    the new type; the log does not tell the mode."""
    if old.name in INTEGERS and new.name in INTEGERS:
        (least, most), (new_least, new_most) = whole_range(old), whole_range(new)
        return least < new_least or most > new_most
    if old.name in TEXTS and new.name in TEXTS:
        cuts_spaces = new.name == "char" and old.name != "char"
        return cuts_spaces or _is_shorter(old, new) or narrows_charset(old.charset, new.charset)
    if old.name in BLOBS and new.name in BLOBS:
        pads = new.name == "binary" and (old.name != "binary" or (new.length or 0) > (old.length or 0))
        return pads or _is_shorter(old, new)
    if old.name in LABELS and new.name in TEXTS:
        return new.length is not None and any(len(label) > new.length for label in old.elements)
    if old.name != new.name and (old.name, new.name) != ("float", "double"):
        return True
    loses_sign = new.unsigned and not old.unsigned
    match new.name:
        case "datetime" | "timestamp":
            return new.fraction < old.fraction
        case "time":
            return new.fraction != old.fraction
        case "decimal":
            # It prints all of its digits; in an Iceberg decimal it only changes with its scale.
            loses_digits = new.precision - new.fraction < old.precision - old.fraction
            return new.fraction != old.fraction or loses_digits or loses_sign
        case "float" | "double":
            rounds = new.scale is not None and (old.scale is None or new.scale < old.scale or old.name != new.name)
            return loses_sign or rounds
        case "bit":
            return new.precision < old.precision
        case "enum":
            return bool(new.elements) and not set(old.elements) <= set(new.elements)
        case "set":
            # Its values list the labels in the order of the declaration.
            return bool(new.elements) and [each for each in new.elements if each in old.elements] != [*old.elements]
        case _:
            return False


def whole_range(column: ColumnType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type or BIT."""
    if column.name == "bit":
        return 0, 2**column.precision - 1
    bits = _BITS[column.name]
    return (0, 2**bits - 1) if column.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _is_shorter(old: ColumnType, new: ColumnType) -> bool:
    """Whether values of a text or binary type may be too long for another."""
    has_length = old.name not in MOST_BYTES
    most = old.length if has_length else MOST_BYTES[old.name]
    if most is None:
        return False
    if new.name not in MOST_BYTES:
        return new.length is not None and new.length < most
    characters = 4 if has_length and old.name in TEXTS else 1
    return MOST_BYTES[new.name] < most * characters


def charset_of(charset: str | None, collation: str | None) -> str | None:
    """Return the character set, given directly or by its collation's name."""
    return charset if charset is not None or collation is None else collation.partition("_")[0]


def narrows_charset(old: str | None, new: str | None) -> bool:
    """Whether a character set may lack characters of another one, which is not known when it is None."""
    if new is None or old == new or new in _ALL_CHARACTERS:
        return False
    return new not in BASIC_PLANE or old is None or old in _ALL_CHARACTERS


# Decoding of the bytes of MySQL's character sets to text.

UTF8: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_CODECS: Final = {
    "latin1": "cp1252", **dict.fromkeys(UTF8, "utf-8"), "ascii": "ascii", "gbk": "gbk", "gb2312": "gb2312",
    "gb18030": "gb18030", "big5": "big5", "sjis": "shift_jis", "cp932": "cp932", "ujis": "euc_jp",
    "eucjpms": "euc_jp", "euckr": "cp949", "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le",
    "utf32": "utf-32-be", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7",
    "hebrew": "iso8859-8", "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8_r", "koi8u": "koi8_u", "tis620": "tis_620",
    "hp8": "hp_roman8", "macce": "mac_latin2", "macroman": "mac_roman",
}  # fmt: skip
# Python has no codec for these character sets of MySQL; its codec for eucjpms decodes some characters differently.
_WITHOUT_CODEC: Final = frozenset({"armscii8", "dec8", "eucjpms", "geostd8", "keybcs2", "swe7"})
# Codecs for decoding where another codec is used for encoding: these decode every byte that MySQL does.
_READING: Final = {"latin1": "latin-1", "big5": "cp950", "binary": "latin-1"}
# Bytes that are undefined in Windows code page 1252; MySQL's latin1 maps each to the code point of the same number.
_GAPS: Final = b"\x81\x8d\x8f\x90\x9d"
# Characters that MySQL (observed with 8.0.12) and Python's codec decode differently from the same bytes.
_CORRECTIONS: Final[dict[str, dict[int, int]]] = {
    "latin1": {byte: ord(bytes([byte]).decode("cp1252")) for byte in range(0x80, 0xA0) if byte not in _GAPS},
    "big5": {
        0x2027: 0x2022, 0xFE51: 0xFF64, 0xAF: 0x203E, 0xFF5E: 0x223C, 0x2295: 0x2641, 0x2299: 0x2609, 0x2215: 0xFF0F,
        0xFE68: 0xFF3C, 0xFFE5: 0xA5, 0xFFE0: 0xA2, 0xFFE1: 0xA3,
    },
    "cp866": {0x2116: 0x207F, 0xA4: 0xB2},
    "gb18030": {0xE7C7: 0x1E3F, 0x1E3F: 0xE7C7},
    "greek": {0x2018: 0x2BD, 0x2019: 0x2BC},
    "hebrew": {0xAF: 0x203E},
    "koi8u": {0x2219: 0x2022},
    "sjis": {0xFF3C: 0x5C},
    "ujis": {0xFF3C: 0x5C},
}  # fmt: skip


class CharsetError(PermanentError):
    """Bytes cannot be decoded in the character set that is declared for them."""


def has_codec(charset: str) -> bool:
    """Whether text in a character set can be decoded."""
    return charset not in _WITHOUT_CODEC and (charset in _CODECS or charset in _READING)


def codec_of(charset: str | None) -> tuple[str, dict[int, int]]:
    """Return Python's codec for a character set, UTF-8 where it is not known, and the characters that MySQL decodes
    differently. Raises CharsetError where there is no codec."""
    name = "utf8mb4" if charset is None else charset.lower()
    codec = _READING.get(name, _CODECS.get(name))
    if name in _WITHOUT_CODEC:
        raise CharsetError(f"character set {name} is MySQL's, but there is no codec for it here")
    if codec is None:
        raise CharsetError(f"character set {name[:64]!r} is not known")
    return codec, _CORRECTIONS.get(name, {})


def text(value: bytes, charset: str) -> str:
    """Decode a column's bytes to the text that MySQL prints; `binary` gives one character for each byte (ISO-8859-1).

    Raises CharsetError where the character set is unknown, has no codec here, or does not contain these bytes.
    """
    codec, corrections = codec_of(charset)
    try:
        read = value.decode(codec)
    except UnicodeDecodeError as error:
        raise CharsetError(f"byte {error.start} of {len(value)} is not {charset.lower()}") from error
    return read if not corrections or read.isascii() else read.translate(corrections)


# --- The text of a row ---

# The text of a row is the same in the source database and in the lake; checksums are computed from it.
#
# Each value has a text, which both sides write in their own SQL (`sources.database`, `value_parsing`):
#
#     integers, YEAR, BIT    decimal digits
#     DECIMAL                all digits of its scale, one at least before the point
#     FLOAT, DOUBLE          the shortest digits that read as the same double, without zeros at either end, `e`, and the
#                            power of ten of the last digit: 1250 is `125e1`; zero is `0`
#     DATE                   year-month-day
#     DATETIME, TIMESTAMP    year-month-day hour:minute:second and six digits, TIMESTAMP in UTC. Where zero dates are
#                            kept as text: as many digits as the column has
#     TIME                   as the source prints it
#     texts, ENUM, SET, JSON the text itself, as UTF-8; of ENUM and SET the labels
#     binaries               the bytes
#
# The row's text joins those of its columns with commas, with `N` for NULL. A text that can contain a comma has its
# length in bytes and a colon before it; one that can be long is replaced by its MD5, and a short binary by its
# hexadecimal digits. A row's hash is the first 16 digits of the text's MD5 as a number, and a bucket's checksum is the
# sum of its rows' hashes, so that the order does not matter. A row's bucket is the first 8 digits of the MD5 of its
# key's text, modulo the number of buckets.

Form = Literal["plain", "counted", "long", "hex", "long_bytes"]
"""The form of a value's text in a row's text: as it is, with its length before it, as its MD5; in hexadecimal, as the
MD5 of its bytes."""

FORMS: Final[dict[str, Form]] = {
    **dict.fromkeys(INTEGERS | FLOATS | TEMPORALS | {"year", "bit", "decimal"}, "plain"),
    **dict.fromkeys(TEXTS | {"json"}, "long"), **dict.fromkeys(LABELS | {"char", "varchar"}, "counted"),
    **dict.fromkeys(BLOBS, "long_bytes"), **dict.fromkeys(("binary", "varbinary"), "hex"),
}  # fmt: skip
"""By the name of a type; it lacks those of which no text is known that both sides can write."""
