"""Parsing of the configuration's text, and messages for text that is not YAML."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Final, cast

import yaml
from yaml.reader import ReaderError

from cdc_lakehouse.errors import ConfigurationError

_QUOTED: Final = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
_MARKS: Final = {
    "<block end>": "the end of the block (is the indentation right?)",
    "<block mapping start>": "the first key of a block",
    "<block sequence start>": "the first item of a list",
    "<scalar>": "a value",
    "<stream end>": "the end of the file",
}
"""The parser's names for parts of a file, in words."""


class _Loader(yaml.SafeLoader):
    """A loader that keeps dates as text, so that an error in one is reported with its key. As in YAML 1.2, only `true`
    and `false` are booleans: `on` is a key of receivers."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag != "tag:yaml.org,2002:timestamp" and (tag != "tag:yaml.org,2002:bool" or first in "tTfF")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_mapping(path: Path, advice: str) -> dict[str, Any]:
    """Read a file that holds a mapping. `advice` is for a file that cannot be read.

    Raises `ConfigurationError` when it cannot be read, is not YAML (with line and column), or holds no mapping.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", advice=advice) from error
    try:
        text = content.decode("utf-8-sig")
        document = yaml.load(text, _Loader)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"its bytes are not UTF-8, at line {line}"
    except ReaderError as error:
        problem = _of_character(content.decode("utf-8-sig"), error)
    except yaml.MarkedYAMLError as error:
        problem = _of_syntax(error)
    except yaml.YAMLError as error:
        problem = type(error).__name__
    else:
        if not isinstance(document, dict):
            raise ConfigurationError(f"{path} holds no mapping", advice="it needs the keys lake and feeds")
        return cast("dict[str, Any]", document)
    raise ConfigurationError(f"{path} is not YAML: {problem}", advice="correct it there")


def _of_character(text: str, error: ReaderError) -> str:
    line = text.count("\n", 0, error.position) + 1
    column = error.position - text.rfind("\n", 0, error.position)
    return f"the character U+{ord(text[error.position]):04X} is not allowed, at line {line}, column {column}"


def _of_syntax(error: yaml.MarkedYAMLError) -> str:
    """Return what was expected and found, where, and in which construct. The file's own text is not shown: it may be a
    secret."""
    said = _in_words(error.problem or "it cannot be read")
    if error.problem_mark is not None:
        said += f", at {_place(error.problem_mark)}"
    if error.context is not None and error.context.startswith("while") and error.context_mark is not None:
        said += f", {_in_words(error.context)} that begins at {_place(error.context_mark)}"
    return said


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _in_words(said: str) -> str:
    for mark, words in _MARKS.items():
        said = said.replace(f"'{mark}'", words).replace(mark, words)
    return _QUOTED.sub(lambda quoted: quoted[0] if len(ast.literal_eval(quoted[0])) == 1 else "'…'", said)
