"""Source text, parsed and compiled once for all who look at it: the static check, the run, what is taken after it."""

from __future__ import annotations

import ast
import symtable
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
        """Returns True if the code assigns the module's ``name``. A value that an earlier run left is then not taken
        again."""
        return _assigns(symtable.symtable(self.source, "<code>", "exec"), name)


def _assigns(scope: symtable.SymbolTable, name: str) -> bool:
    """Searches the module's scope, and inner ones that declare the name global."""
    if name in scope.get_identifiers():
        symbol = scope.lookup(name)
        if (symbol.is_assigned() or symbol.is_imported()) and (scope.get_type() == "module" or symbol.is_global()):
            return True
    return any(_assigns(inner, name) for inner in scope.get_children())


def compiled(source: str, name: str, value: bool) -> Program:
    """``name`` is the file's in tracebacks; ``value``: the last expression's value is wanted. Raises ``SyntaxError``,
    ``ValueError``, ``MemoryError`` or ``RecursionError`` for a text that Python does not take."""
    tree = ast.parse(source, name)
    end = tree.body[-1] if tree.body else None
    if not value or not isinstance(end, ast.Expr):
        return Program(source, tree, compile(tree, name, "exec", dont_inherit=True))
    body = compile(ast.Module(tree.body[:-1], tree.type_ignores), name, "exec", dont_inherit=True)
    return Program(source, tree, body, compile(ast.Expression(end.value), name, "eval", dont_inherit=True))
