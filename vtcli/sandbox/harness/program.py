"""Source text, parsed and compiled once for all who look at it: the static check, the run, what is taken after it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True, slots=True)
class Program:
    """``body``: what is run; ``last``: the last expression, when its value is wanted and the text ends in one, else
    None, and it is part of the body."""

    source: str
    tree: ast.Module
    body: CodeType
    last: CodeType | None = None

    def assigns(self, name: str) -> bool:
        """Whether the code gives the module's ``name`` a value, so that one left by an earlier run is not taken again.
        A function that declares it global counts."""
        return any(_stores(node, name) for node in ast.walk(self.tree))


def _stores(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(id=found, ctx=ast.Store()):
            return found == name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return any((alias.asname or alias.name.partition(".")[0]) == name for alias in aliases)
        case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
            return found == name
        case _:
            return False


def compiled(source: str, name: str, value: bool) -> Program:
    """``name`` is the file's in tracebacks; ``value``: the last expression's value is wanted. Raises ``SyntaxError``,
    ``ValueError``, ``MemoryError`` or ``RecursionError`` for a text that Python does not take."""
    tree = ast.parse(source, name)
    end = tree.body[-1] if tree.body else None
    if not value or not isinstance(end, ast.Expr):
        return Program(source, tree, compile(tree, name, "exec", dont_inherit=True))
    body = compile(ast.Module(tree.body[:-1], tree.type_ignores), name, "exec", dont_inherit=True)
    return Program(source, tree, body, compile(ast.Expression(end.value), name, "eval", dont_inherit=True))
