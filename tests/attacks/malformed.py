"""Family ``out``, second half: sources that are wrong as text. The code may not start at all,
so no report of it is expected."""

# code in strings, which is not wrapped

from __future__ import annotations

from vtcli.sandbox.types import Status

from .case import Attack, ends

CASES = (
    Attack(
        "out.source_nul", "a NUL byte in the source", "x = '\0'", statuses=ends(Status.ERROR, Status.REFUSED), raw=True
    ),
    Attack(
        "out.source_surrogate",
        "a lone surrogate in the source",
        "x = '\ud800'",
        statuses=ends(Status.ERROR, Status.REFUSED, Status.OK),
        raw=True,
    ),
    Attack("out.source_long", "a source of 300 kB", "x = 1\n" * 50_000, statuses=ends(Status.REFUSED), raw=True),
    Attack(
        "out.source_coding",
        "a source that names a codec",
        "# -*- coding: utf-7 -*-\n+AHg = 1",
        statuses=ends(Status.ERROR, Status.OK, Status.REFUSED),
        raw=True,
    ),
    Attack(
        "out.source_parens",
        "a source of 60,000 parentheses",
        "(" * 60_000,
        statuses=ends(Status.ERROR, Status.REFUSED),
        raw=True,
    ),
    Attack(
        "out.source_minus",
        "a source of 60,000 signs",
        "-" * 60_000 + "1",
        statuses=ends(Status.ERROR, Status.REFUSED, Status.CRASH),
        raw=True,
    ),
    Attack(
        "out.source_calls",
        "a source of deep calls",
        "f(" * 3000 + ")" * 3000,
        statuses=ends(Status.ERROR, Status.REFUSED),
        raw=True,
    ),
    Attack(
        "out.source_bidi",
        "a source with direction marks and look-alike names",
        "а = 1 # \u202e }\n\u2066",
        statuses=ends(Status.ERROR, Status.OK, Status.REFUSED),
        raw=True,
    ),
)
