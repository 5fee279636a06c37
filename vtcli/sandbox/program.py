"""Source text, parsed and compiled once for all who look at it: the static check, the run, what is taken after it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True, slots=True)
class Program:
    """``tree``: the whole text; ``body``: what is run; ``last``: the last expression, when its value is wanted and the
    text ends in one, else None, and it is part of the body."""

    tree: ast.Module
    body: CodeType
    last: CodeType | None

    def assigns(self, name: str) -> bool:
        """Whether the code gives the name a value anywhere, so that one left by an earlier run is not taken again."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                return True
            if isinstance(node, ast.alias) and (node.asname or node.name) == name:
                return True
        return False


def compiled(source: str, name: str, value: bool) -> Program:
    """``name`` is the file's in tracebacks; ``value``: the last expression's value is wanted. Raises ``SyntaxError``,
    ``ValueError``, ``MemoryError`` or ``RecursionError`` for a text that Python does not take."""
    tree = ast.parse(source, name)
    end = tree.body[-1] if value and tree.body else None
    if not isinstance(end, ast.Expr):
        return Program(tree, compile(tree, name, "exec", dont_inherit=True), None)
    body = compile(ast.Module(tree.body[:-1], tree.type_ignores), name, "exec", dont_inherit=True)
    return Program(tree, body, compile(ast.Expression(end.value), name, "eval", dont_inherit=True))
