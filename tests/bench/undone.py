"""Past fixes undone one at a time: which of them do the tests of their rooms find?

    python tests/bench/undone.py --count 60 --out undone.jsonl
    python tests/bench/undone.py --count 60 --drawn-from OLD --commit NEW --out new.jsonl
    python tests/bench/undone.py --count 60 --drawn-from OLD --commit OLD --again new.jsonl --out old.jsonl

The sample is drawn by a seed from commits that changed behaviour in few lines of the product and a test with it. The
product's part is taken back in a worktree. A part that does not go back cleanly counts as "conflict". The tests are
those that the commit changed, as far as they are still there, and then those of the rooms that it touched. The run goes
on where it was ended.
"""

from __future__ import annotations

import ast
import random
import subprocess
from pathlib import Path

import _baseline as baseline

MOST_LINES, MOST_FILES = 60, 4
"""Changed in the product: what is larger is seldom one fix, and seldom goes back."""


def candidates(commit: str) -> list[str]:
    """Commits before ``commit``, newest first, that changed few lines of the product and a test."""
    log = baseline.git("log", "--no-merges", "--format=commit %H", "--numstat", commit)
    found: list[str] = []
    for part in log.split("commit ")[1:]:
        name, *lines = part.splitlines()
        changes = [line.split("\t") for line in lines if line.strip()]
        product = [c for c in changes if c[2].startswith(baseline.PRODUCT) and c[2].endswith(".py")]
        tests = [c for c in changes if c[2].startswith("tests/") and Path(c[2]).name.startswith("test_")]
        lines_changed = sum(int(c[0]) + int(c[1]) for c in product)
        if tests and 0 < len(product) <= MOST_FILES and lines_changed <= MOST_LINES:
            found.append(name)
    return found


def changed(commit: str) -> list[str]:
    """The product's Python files that a commit changed and that were there before."""
    names = baseline.git("diff", "--name-only", "--diff-filter=M", f"{commit}^", commit, "--", *baseline.PRODUCT)
    return [name for name in names.splitlines() if name.endswith(".py")]


def is_fix(commit: str) -> bool:
    """True if the commit changed code that was there, and not only docstrings and comments, and asserts something new
    in a test."""
    added = baseline.git("diff", "--unified=0", f"{commit}^", commit, "--", "tests")
    asserts = any(line.startswith("+") and ("assert" in line or "raises" in line) for line in added.splitlines())
    return asserts and any(_code(f"{commit}^", name) != _code(commit, name) for name in changed(commit))


def _code(commit: str, name: str) -> str:
    tree = ast.parse(baseline.git("show", f"{commit}:{name}"))
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]  # type: ignore[attr-defined]
    return ast.dump(tree)


def drawn(commit: str, count: int, seed: int) -> list[str]:
    every = candidates(commit)
    random.Random(seed).shuffle(every)
    found: list[str] = []
    for name in every:
        if len(found) == count:
            break
        if is_fix(name):
            found.append(name)
    return found


def undo(tree: Path, commit: str) -> bool:
    """Takes the product's part back. Returns False, with the tree as it was, if it does not go back cleanly."""
    patch = baseline.git("diff", f"{commit}^", commit, "--", *changed(commit))
    words = ["git", "apply", "--reverse", "--3way", "--whitespace=nowarn"]
    done = subprocess.run(words, cwd=tree, input=patch, capture_output=True, text=True, check=False)
    if done.returncode == 0 and all(_compiles(tree / name) for name in changed(commit)):
        return True
    restore(tree)
    return False


def _compiles(path: Path) -> bool:
    try:
        ast.parse(path.read_text())
    except SyntaxError:
        return False
    return True


def restore(tree: Path) -> None:
    baseline.git("reset", "--quiet", "--hard", cwd=tree)


def attempt(tree: Path, commit: str, limit_s: int, marks: str | None) -> baseline.Tested:
    """The tests of a commit's rooms without it."""
    if not undo(tree, commit):
        return baseline.Tested("conflict", "", 0.0)
    try:
        if not baseline.git("diff", "--stat", "HEAD", cwd=tree):
            return baseline.Tested("gone", "", 0.0)
        names = baseline.git("diff", "--name-only", f"{commit}^", commit, "--", "tests").splitlines()
        first = [name for name in names if Path(name).name.startswith("test_")]
        tests = baseline.room_tests(tree, changed(commit), first)
        return baseline.run_tests(tree, tests, limit_s, marks)
    finally:
        restore(tree)


def main() -> None:
    parser = baseline.parser(__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    asked = parser.parse_args()
    if not asked.table:
        known, wanted = baseline.known(asked.out), baseline.missed(asked.again)
        with baseline.checkout(asked.commit) as tree:
            for commit in drawn(asked.drawn_from or asked.commit, asked.count, asked.seed):
                if commit not in known and wanted(commit) and baseline.spent_s(asked.out) < asked.budget_s:
                    found = attempt(tree, commit, asked.limit_s, asked.marks)
                    subject = baseline.git("log", "-1", "--format=%s", commit).strip()
                    rooms = sorted({name.rpartition("/")[0] for name in changed(commit)})
                    baseline.add(asked.out, {"key": commit, "what": subject, "rooms": ", ".join(rooms), **vars(found)})
    rows = [row | {"sample": "fixes"} for row in baseline.known(asked.out).values()]
    print(baseline.table(rows, "sample"))
    for row in rows:
        if row["result"] in ("survived", "none", "over the limit", "conflict"):
            print(f"{row['result']}: {row['key'][:10]} {row['what']}")


if __name__ == "__main__":
    main()
