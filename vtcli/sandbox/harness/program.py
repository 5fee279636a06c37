"""Source text, compiled once for all who look at it: the static check, the run, what is taken after it."""

from __future__ import annotations

import ast
import dis
from dataclasses import dataclass
from types import CodeType

STORES = (dis.opmap["STORE_NAME"], dis.opmap["STORE_GLOBAL"])
"""The instructions that give a name of the module a value; their argument is the name's place in ``co_names``."""


@dataclass(frozen=True, slots=True)
class Program:
    """``body``: what is run; ``last``: the last expression, when its value is wanted and the text ends in one, else
    None, and it is part of the body."""

    source: str
    body: CodeType
    last: CodeType | None = None

    def tree(self) -> ast.Module:
        """The whole text, for who wants to look closer: most texts are never asked for it."""
        return ast.parse(self.source)

    def assigns(self, name: str) -> bool:
        """Whether the code may give the module's ``name`` a value, so that one left by an earlier run is not taken
        again. In bytecode, which is there: a walk through the tree costs more than all else that is done here."""
        return _stores(self.body, name) or (self.last is not None and _stores(self.last, name))


def _stores(code: CodeType, name: str) -> bool:
    if name in code.co_names:
        place = code.co_names.index(name)
        if place > 255:  # told by more than one instruction
            found = any(i.argval == name for i in dis.get_instructions(code) if i.opcode in STORES)
        else:
            found = any(_has(code.co_code, bytes((store, place))) for store in STORES)
        if found:
            return True
    return any(_stores(inner, name) for inner in code.co_consts if isinstance(inner, CodeType))


def _has(words: bytes, word: bytes) -> bool:
    """Whether one of the words, of two bytes each, is ``word``."""
    at = words.find(word)
    while at % 2 == 1 and at >= 0:
        at = words.find(word, at + 1)
    return at >= 0


def compiled(source: str, name: str, value: bool) -> Program:
    """``name`` is the file's in tracebacks; ``value``: the last expression's value is wanted. Raises ``SyntaxError``,
    ``ValueError``, ``MemoryError`` or ``RecursionError`` for a text that Python does not take."""
    if not value:
        return Program(source, compile(source, name, "exec", dont_inherit=True))
    tree = ast.parse(source, name)
    end = tree.body[-1] if tree.body else None
    if not isinstance(end, ast.Expr):
        return Program(source, compile(tree, name, "exec", dont_inherit=True))
    body = compile(ast.Module(tree.body[:-1], tree.type_ignores), name, "exec", dont_inherit=True)
    return Program(source, body, compile(ast.Expression(end.value), name, "eval", dont_inherit=True))
