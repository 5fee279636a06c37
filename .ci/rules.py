"""Every rule about files and pages, as one script: prints each violation as ``file:line: message`` and exits 1.

``python .ci/rules.py`` is part of `make check`. ``python .ci/rules.py --write`` first writes the tables of docs/papers.
A rule is a generator of violations over a ``Tree``, in house_rules.py, page_rules.py or paper_rules.py. Commands and
keys of pages are composed with the configuration of this checkout.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's package, whichever is installed

import house_rules  # noqa: E402
import page_rules  # noqa: E402
import paper_rules  # noqa: E402
from checkout import Tree, Violation  # noqa: E402
from compositions import COMPOSITIONS  # noqa: E402

DIALECT_CEILING = 0
"""Words of dialect in docstrings and error messages of the package (``house_rules.DIALECT``). It only goes down: lower
it when the script prints fewer."""


def main() -> int:
    """Checks this checkout and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables of docs/papers first")
    if parser.parse_args().write:
        paper_rules.write()
    gc.disable()  # compositions make millions of small objects: collecting them took a fifth of the time
    tree = Tree(ROOT)
    rules = (*house_rules.RULES, *page_rules.RULES, *paper_rules.RULES)
    found = [violation for rule in rules for violation in rule(tree)]
    COMPOSITIONS.keep()
    words = list(house_rules.dialect(tree))
    if len(words) > DIALECT_CEILING:
        over = f"{len(words)} words of dialect, more than {DIALECT_CEILING}: write those of your files in plain English"
        found += [*words, Violation(".ci/rules.py", over)]
    for violation in found:
        print(violation)
    lower = " (set DIALECT_CEILING to that)" if len(words) < DIALECT_CEILING else ""
    print(
        f"{len(tree.modules)} modules, {len(tree.pages)} pages: {len(found)} violations; "
        f"{len(words)} words of dialect of at most {DIALECT_CEILING}{lower}"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
