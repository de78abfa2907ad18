"""The mutants of a module: one small change of its syntax tree each."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Evaluated once, when the module is imported, or only for people to read.
_LEFT_OUT = {"annotation", "returns", "decorator_list", "args", "type_params", "format_spec", "type_ignores"}


CodeKey = tuple[str, int, str]  # A file, the first line, and the name of a function.


@dataclass(frozen=True)
class Mutant:
    identity: str  # The same whichever lines are added elsewhere in the file.
    module: str
    path: str
    line: int
    what: str
    # The function's first line, for the tests that call it. None: a constant of the module.
    function: int | None
    constant: ast.stmt | None
    change: Callable[[], None]
    restore: Callable[[], None]


def mutants_of(module: str, path: Path) -> tuple[ast.Module, list[Mutant]]:
    """Return the module's syntax tree and the changes that can be made to it, in the order of the file."""
    source = path.read_text()
    lines, tree = source.splitlines(), ast.parse(source)
    numbers, mutants = Counter[str](), []
    for parent, field, index, node, place in _places(tree):
        for what, new in _replacements(node):
            # No line number, and no column: a mutant is known again after a change elsewhere.
            text = f"{module}::{place.name}::{lines[node.lineno - 1].strip()}::{what}"
            numbers[text] += 1
            new = ast.fix_missing_locations(ast.copy_location(new, node))
            change, restore = (_setter(parent, field, index, value) for value in (new, node))
            identity = f"{text} #{numbers[text]}"
            mutants.append(
                Mutant(identity, module, str(path), node.lineno, what, place.line, place.constant, change, restore)
            )
    return tree, mutants


def changed_code(tree: ast.Module, path: str, mutant: Mutant) -> dict[CodeKey, CodeType]:
    """Return the code objects that the mutant changes. Those of lambdas on one line are told by the one around them."""
    before = _code_objects(compile(tree, path, "exec", dont_inherit=True))
    mutant.change()
    try:
        after = _code_objects(compile(tree, path, "exec", dont_inherit=True))
    finally:
        mutant.restore()
    single = [key for key in before if len(before[key]) == len(after.get(key, ())) == 1]
    return {key: after[key][0] for key in single if after[key] != before[key]}


def code_key(code: CodeType) -> CodeKey:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _code_objects(code: CodeType) -> dict[CodeKey, list[CodeType]]:
    found: dict[CodeKey, list[CodeType]] = {}
    pending = [code]
    while pending:
        inner = [const for const in pending.pop().co_consts if isinstance(const, CodeType)]
        for one in inner:
            found.setdefault(code_key(one), []).append(one)
        pending += inner
    return found


@dataclass(frozen=True)
class _Place:
    name: str
    line: int | None
    constant: ast.stmt | None


_Nodes = Iterator[tuple[ast.AST, str, int | None, Any, _Place]]


def _places(tree: ast.Module) -> _Nodes:
    """Yield each node inside functions and inside assignments to the module's names, with what holds it."""
    for statement in tree.body:
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            yield from _definitions(statement, "")
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if all(isinstance(target, ast.Name) and target.id != "__all__" for target in targets):
                yield from _below(statement, _Place(ast.unparse(targets[0]), None, statement))


def _definitions(node: ast.stmt, prefix: str) -> _Nodes:
    assert isinstance(node, (*_FUNCTIONS, ast.ClassDef))
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
                yield from _definitions(statement, f"{prefix}{node.name}.")
        return
    line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    place = _Place(prefix + node.name, line, None)
    documented = ast.get_docstring(node, clean=False) is not None
    for index, statement in enumerate(node.body):
        if not (documented and index == 0):
            yield from _visit(node, "body", index, statement, place)


def _below(node: ast.AST, place: _Place) -> _Nodes:
    for field, value in ast.iter_fields(node):
        if field in _LEFT_OUT or (field in ("targets", "target") and place.constant is not None):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield from _visit(node, field, index, child, place)


def _visit(parent: ast.AST, field: str, index: int | None, node: ast.AST, place: _Place) -> _Nodes:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield from _definitions(node, f"{place.name}.")
        return
    if isinstance(node, ast.JoinedStr) and _is_message(parent):
        return
    if isinstance(node, ast.Constant) and (isinstance(parent, ast.JoinedStr) or _is_message(parent)):
        return
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        return
    yield parent, field, index, node, place
    yield from _below(node, place)


def _is_message(parent: ast.AST) -> bool:
    """Whether texts below it are for people alone: an error's, or a line of the log."""
    if not isinstance(parent, ast.Call):
        return False
    name = ast.unparse(parent.func)
    return name.endswith(("Error", "Exception")) or name.startswith(("log.", "_log.", "logger."))


def _replacements(node: ast.AST) -> Iterator[tuple[str, Any]]:
    match node:
        case ast.Compare(left, [operator], comparators):
            for other in _COMPARISONS[type(operator)]:
                yield f"{type(operator).__name__} becomes {other.__name__}", ast.Compare(left, [other()], comparators)
        case ast.BoolOp(operator, values):
            other = ast.Or if isinstance(operator, ast.And) else ast.And
            yield f"{type(operator).__name__} becomes {other.__name__}", ast.BoolOp(other(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not is left out", operand
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            other = _ARITHMETIC[type(operator)]
            yield f"{type(operator).__name__} becomes {other.__name__}", ast.BinOp(left, other(), right)
        case ast.Constant(bool() as value):
            yield f"{value} becomes {not value}", ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            for other in (value + 1, value - 1):
                yield f"{value} becomes {other}", ast.Constant(other)
        case ast.Constant(str() | bytes() as value):
            yield f"{value[:30]!r} is changed", ast.Constant(value + "~" if isinstance(value, str) else value + b"~")
        case ast.If(test) | ast.While(test) if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
            yield "condition is negated", type(node)(negated, node.body, node.orelse)
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield "returns None", ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call(func)) if not ast.unparse(func).startswith(("log.", "_log.", "logger.")):
            yield "statement is left out", ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "statement is left out", ast.Pass()
        case ast.Continue() | ast.Break():
            yield "statement is left out", ast.Pass()


def _setter(parent: ast.AST, field: str, index: int | None, value: ast.AST) -> Callable[[], None]:
    def put() -> None:
        if index is None:
            setattr(parent, field, value)
        else:
            getattr(parent, field)[index] = value

    return put
