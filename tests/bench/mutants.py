"""Small mistakes put into the product one at a time: which of them do the tests of their room find?

    python tests/bench/mutants.py --count 40 --out mutants.jsonl
    python tests/bench/mutants.py --count 40 --drawn-from OLD --commit NEW --out new.jsonl
    python tests/bench/mutants.py --count 40 --drawn-from OLD --commit OLD --again new.jsonl --out old.jsonl

A seeded sample of mistakes in each room, each against the tests of that room, in a worktree. A mistake is known by its
file, its function, the code that it replaces and the how manieth of this code it is there. A commit that no longer has
it counts as "gone". The run goes on where it was ended.
"""

from __future__ import annotations

import ast
import fnmatch
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import _baseline as baseline

ROOMS = {
    "rewards": ["vtcli/rewards/*.py"],
    "algo": ["vtcli/algo/*.py", "vtcli/statistics/*.py"],
    "chat": [
        *("vtcli/families/calls.py", "vtcli/families/messages.py", "vtcli/families/pieces.py"),
        *("vtcli/families/thoughts.py", "vtcli/families/templates.py", "vtcli/families/*/chat*.py"),
    ],
    "scorers": ["vtcli/signals/scorers/*.py"],
    "store": ["vtcli/store/*.py"],
}

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.Pow: "*", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    file: str
    function: str
    before: str
    after: str
    number: int  # of several alike in the function
    line: int
    start: int  # in the file's bytes
    end: int

    @property
    def key(self) -> str:
        return f"{self.file}:{self.function}: {self.before} -> {self.after} ({self.number})"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants(file: str, source: str) -> list[Mutant]:
    """Every small mistake of a file that still compiles."""
    offsets = [0]
    data = source.encode()
    for line in data.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    seen: Counter[tuple[str, str, str]] = Counter()
    found: list[Mutant] = []
    for function, node, after in _changes(ast.parse(source), ""):
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = data[start:end].decode()
        seen[function, before, after] += 1
        found.append(Mutant(file, function, before, after, seen[function, before, after], node.lineno, start, end))
    return [mutant for mutant in found if _compiles(mutant.apply(data))]


def _compiles(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _changes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """The function, the node that is replaced, and its replacement. Annotations and docstrings stay as they are."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    yield from ((function, *change) for change in _of_node(node))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield from _changes(child, function)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _of_node(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield node, f"({left} {COMPARISONS[type(node.ops[0])]} {right})"
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _of_types(node):
        yield node, f"({ast.unparse(node.left)} {ARITHMETIC[type(node.op)]} {ast.unparse(node.right)})"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield node, "(" + word.join(f"({ast.unparse(value)})" for value in node.values) + ")"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield node, str(not node.value)
        elif isinstance(node.value, int | float):
            yield node, repr(node.value + 1)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield node, "return None"
    elif isinstance(node, ast.Break):
        yield node, "continue"
    elif isinstance(node, ast.Continue):
        yield node, "break"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield node, "pass"


def _of_types(node: ast.BinOp) -> bool:
    """``int | None`` outside of an annotation."""
    names = [part for part in (node.left, node.right) if isinstance(part, ast.Name | ast.Constant)]
    return isinstance(node.op, ast.BitOr) and any(
        ast.unparse(part) in ("None", "str", "int", "float") for part in names
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def drawn(commit: str, room: str, count: int, seed: int) -> list[Mutant]:
    """The sample of a room: the first of a shuffled order, so that a larger sample holds the smaller one."""
    files = [name for name in baseline.product_files(commit) if any(fnmatch.fnmatch(name, p) for p in ROOMS[room])]
    every = [mutant for name in files for mutant in mutants(name, baseline.git("show", f"{commit}:{name}"))]
    random.Random(f"{seed}-{room}").shuffle(every)
    return every[:count]


def attempt(tree: Path, wanted: Mutant, limit_s: int, marks: str | None) -> baseline.Tested:
    """The room's tests with one mistake in the tree, which is as it was afterwards."""
    path = tree / wanted.file
    source = path.read_bytes() if path.exists() else b""
    here = next((each for each in mutants(wanted.file, source.decode()) if each.key == wanted.key), None)
    if here is None:
        return baseline.Tested("gone", "", 0.0)
    path.write_bytes(here.apply(source))
    try:
        return baseline.run_tests(tree, baseline.room_tests(tree, [wanted.file]), limit_s, marks)
    finally:
        path.write_bytes(source)


def main() -> None:
    parser = baseline.parser(__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40, help="mistakes in each room")
    parser.add_argument("--rooms", nargs="*", default=list(ROOMS), choices=list(ROOMS))
    asked = parser.parse_args()
    if not asked.table:
        known, wanted = baseline.known(asked.out), baseline.missed(asked.again)
        with baseline.checkout(asked.commit) as tree:
            samples = [drawn(asked.drawn_from or asked.commit, r, asked.count, asked.seed) for r in asked.rooms]
            # A room after the other, so that a budget that runs out leaves as many tried in each.
            for turn in zip_longest(*samples):
                for room, mutant in zip(asked.rooms, turn, strict=True):
                    if mutant is None or mutant.key in known or not wanted(mutant.key):
                        continue
                    if baseline.spent_s(asked.out) < asked.budget_s:
                        found = attempt(tree, mutant, asked.limit_s, asked.marks)
                        row = {"key": mutant.key, "room": room, "line": mutant.line, **vars(found)}
                        baseline.add(asked.out, row)
    rows = baseline.known(asked.out).values()
    print(baseline.table(rows, "room"))
    for row in rows:
        if row["result"] in ("survived", "none"):
            print(f"{row['result']}: {row['key']}, line {row['line']}")


if __name__ == "__main__":
    main()
