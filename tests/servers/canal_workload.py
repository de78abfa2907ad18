"""What happens in the database that Canal is tried with."""

from __future__ import annotations

from typing import Final

from tests.servers.canal_reader import Writer

_TYPES: Final = """CREATE TABLE types (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    ti TINYINT, tu TINYINT UNSIGNED, si SMALLINT, su SMALLINT UNSIGNED, mi MEDIUMINT, mu MEDIUMINT UNSIGNED,
    i INT, iu INT UNSIGNED, b BIGINT, bu BIGINT UNSIGNED, bo BOOLEAN, z INT(8) ZEROFILL,
    d DECIMAL(38,10), du DECIMAL(65,30) UNSIGNED, d0 DECIMAL(5,0), f FLOAT, f2 FLOAT(7,3), r DOUBLE,
    b1 BIT(1), b9 BIT(9), b64 BIT(64),
    c CHAR(10), v VARCHAR(200), l VARCHAR(50) CHARACTER SET latin1, g VARCHAR(50) CHARACTER SET gbk,
    bi BINARY(8), vb VARBINARY(300), tb TINYBLOB, bl BLOB, mb MEDIUMBLOB, lb LONGBLOB,
    tt TINYTEXT, tx TEXT, mt MEDIUMTEXT, lt LONGTEXT,
    e ENUM('a','b','c,''d','中'), s SET('x','y','z'), j JSON,
    da DATE, dt DATETIME, d3 DATETIME(3), d6 DATETIME(6), t TIME, t6 TIME(6), ts TIMESTAMP NULL, t9 TIMESTAMP(6) NULL,
    y YEAR, p POINT, ge GEOMETRY,
    st BIGINT AS (i + 1) STORED, vi VARCHAR(20) AS (CONCAT('v', si)) VIRTUAL)"""
_SPATIAL: Final = " p POINT, ge GEOMETRY,"
_VALUES: Final[dict[str, list[str]]] = {
    "ti": ["-128", "127", "0"], "tu": ["255", "0"], "si": ["-32768", "32767"], "su": ["65535"],
    "mi": ["-8388608", "8388607"], "mu": ["16777215"], "i": ["-2147483648", "2147483646", "0"], "iu": ["4294967295"],
    "b": ["-9223372036854775808", "9223372036854775807"], "bu": ["18446744073709551615", "9223372036854775808"],
    "bo": ["true", "false", "7"], "z": ["42", "0"],
    "d": ["1234567890123456789012345678.0123456789", "0", "-0.0000000001", "1"], "du": ["0", "1e-30", "17"],
    "d0": ["-99999", "0"], "f": ["1.5", "-3.4028234e38", "0", "1e-38", "0.1"], "f2": ["1.5", "-9999.999", "0"],
    "r": ["3.141592653589793", "1.7976931348623157e308", "5e-324", "0", "-0.1"],
    "b1": ["b'1'", "b'0'"], "b9": ["b'101010101'", "b'0'"], "b64": ["0xFFFFFFFFFFFFFFFF", "0x8000000000000000", "b'1'"],
    "c": ["'char'", "''", "'  sp  '"], "v": ["'vär 中文 😀 \"q\" \\\\ \\n\\t'", "''", "'NULL'", "'null'"],
    "l": ["'café'", "'plain'"], "g": ["'中文'", "'plain'"],
    "bi": ["0x0001020304050607", "0x00", "''", "0xFF00000000000000"], "vb": ["0x00FF", "''", "0x0000"],
    "tb": ["0xDEADBEEF"], "bl": ["REPEAT(0x00FF7F80, 20000 / 4)", "''"], "mb": ["REPEAT(0xC0FFEE, 30000)"],
    "lb": ["0xFEFF00", "''"], "tt": ["'tt'"], "tx": ["'text 中'", "''", "REPEAT('中', 20000)"], "mt": ["'mt'"],
    "lt": ["REPEAT('x', 100000)"], "e": ["'a'", "'c,''d'", "'中'", "2"], "s": ["''", "'x,z'", "'x,y,z'"],
    "j": ["'{\"a\": [1, 2, {\"b\": null}], \"u\": \"中😀\", \"f\": 1.0}'", "'null'", "'[]'", "'\"s\"'",
          "'-1.5e10'"],
    "da": ["'1000-01-01'", "'9999-12-31'", "'0000-00-00'", "'2024-00-00'"],
    "dt": ["'1000-01-01 00:00:00'", "'0000-00-00'"], "d3": ["'2024-02-29 12:34:56.789'", "'2024-01-01'"],
    "d6": ["'9999-12-31 23:59:59.999999'", "'0000-00-00'"], "t": ["'838:59:59'", "'-838:59:59'", "'00:00:00'"],
    "t6": ["'-00:00:00.000001'", "'12:34:56.789'"],
    "ts": ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'0000-00-00'"],
    "t9": ["'2000-01-01 00:00:00.5'", "'2038-01-19 03:14:07.999999'"], "y": ["1901", "2155", "0"],
    "p": ["ST_GeomFromText('POINT(1 2)')"],
    "ge": ["ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))', 4326)", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')"],
}  # fmt: skip
"""Of each column of `types`, with NULL where one has fewer than another."""

STEPS: Final = [
    "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(20) DEFAULT 'x'); INSERT INTO a VALUES (1, 'one'), (2, 'two')",
    "ALTER TABLE a ADD n DECIMAL(10,2) NOT NULL DEFAULT 1.5 AFTER id; INSERT INTO a (id) VALUES (3)",
    "UPDATE a SET n = n + id, v = NULL WHERE id > 1; REPLACE INTO a VALUES (1, 7, 'replaced')",
    "ALTER TABLE a CHANGE v w VARCHAR(40), DROP n, ADD m INT; INSERT INTO a VALUES (4, 'four', 44)",
    "RENAME TABLE a TO b; INSERT INTO b VALUES (5, 'five', 55)",
    "INSERT INTO b VALUES (5, 'five', 55) ON DUPLICATE KEY UPDATE m = 1; UPDATE b SET id = 50 WHERE id = 5",
    "CREATE TABLE `weird 名` (`co``l` INT PRIMARY KEY, `select` ENUM('a', 'b')); INSERT INTO `weird 名` VALUES (1, 2)",
    "UPDATE `weird 名` SET `co``l` = 2, `select` = 'a'",
    "CREATE TABLE nokey (x INT, y VARCHAR(9)); INSERT INTO nokey VALUES (1, 'a'), (1, 'a'), (NULL, NULL)",
    "UPDATE nokey SET y = 'b' WHERE x = 1 LIMIT 1; DELETE FROM nokey WHERE x IS NULL",
    "CREATE TABLE gone1 (a INT); CREATE TABLE gone2 (a INT); INSERT INTO gone1 VALUES (1)",
    "CREATE TABLE alike LIKE b; INSERT INTO alike SELECT * FROM b",
    "DROP TABLE gone1, gone2; TRUNCATE TABLE alike; INSERT INTO alike VALUES (9, 'n', 9)",
    "RENAME TABLE b TO tmp, alike TO b, tmp TO alike; INSERT INTO b VALUES (10, 't', 10)",
    "CREATE DATABASE d2; CREATE TABLE d2.moved (id INT PRIMARY KEY); INSERT INTO d2.moved VALUES (1)",
    "RENAME TABLE d2.moved TO moved; INSERT INTO moved VALUES (2); DROP DATABASE d2",
    "BEGIN; INSERT INTO moved VALUES (3); SAVEPOINT s; INSERT INTO moved VALUES (4); ROLLBACK TO s; COMMIT",
    "BEGIN; INSERT INTO moved VALUES (5); ROLLBACK",
    "ALTER TABLE moved MODIFY id BIGINT UNSIGNED; UPDATE moved SET id = 18446744073709551615 WHERE id = 3",
]
"""DDL among rows. Canal asks the database for a table's columns when it first sees rows of it, so it must have seen a
step before the next one."""


def every_type(writer: Writer, *, spatial: bool = True) -> None:
    """In the table `types`, each value of each type, inserted, changed to, and deleted; among them NULL. Without
    `spatial` types for a TiDB, which has none."""
    create = _TYPES if spatial else _TYPES.replace(_SPATIAL, "")
    values = {name: each for name, each in _VALUES.items() if spatial or name not in ("p", "ge")}
    writer.run("SET SESSION sql_mode = ''", create)
    columns = ", ".join(values)
    for number in range(max(map(len, values.values()))):
        row = [each[number] if number < len(each) else "NULL" for each in values.values()]
        writer.run(f"INSERT INTO types ({columns}) VALUES ({', '.join(row)})")
    writer.run("INSERT INTO types (id) VALUES (18446744073709551614)")
    for name, each in values.items():
        writer.run(f"UPDATE types SET {name} = {each[-1]} WHERE id = 2")
    writer.run("UPDATE types SET id = 1000 WHERE id = 3", "DELETE FROM types WHERE id = 4")
