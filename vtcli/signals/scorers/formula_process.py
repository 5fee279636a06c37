"""The process that runs math-verify, because sympy may compute for minutes over a short text.

It is a separate program, given a descriptor of its pipe and a limit in seconds of CPU: a process made by
multiprocessing would run the caller's ``__main__`` again. It imports nothing of this package.
"""

from __future__ import annotations

import logging
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, cast

MEMORY = 4 << 30
NEAR = 1e-6
SMALL = 1e-2


def comparer() -> Callable[[str, str], bool]:
    """The comparison of two formulas, with math-verify imported."""
    import math_verify
    import sympy

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarm is off
    parse, verify = (cast("Callable[..., Any]", f) for f in (math_verify.parse, math_verify.verify))

    def number(parsed: list[Any]) -> Any:
        """The number that was parsed, to 30 digits; None for another expression."""
        first = parsed[0] if parsed else None
        if not isinstance(first, sympy.Expr) or first.free_symbols or not first.is_number:
            return None
        value = first.doit().evalf(30)  # parsed unevaluated: -18 + 18 is 0 exactly
        return value if value.is_Number or (value.is_number and not value.has(sympy.oo, sympy.zoo, sympy.nan)) else None

    def same(text: str, answer: str) -> bool:
        given, wanted = (parse(f"\\boxed{{{side}}}", parsing_timeout=None) for side in (text, answer))
        a = number(given)
        b = None if a is None else number(wanted)
        if a is None or b is None or not (a.is_finite and b.is_finite):
            return bool(verify(wanted, given, timeout_seconds=None))
        # math-verify rounds to six decimals, so that all numbers below 1e-6 are one
        error, size = abs(a - b), max(abs(a), abs(b))
        return bool(error <= NEAR * size or (error < NEAR and size >= SMALL))

    same("1", "1")  # the first one imports the rest of sympy
    return same


def serve(pipe: Connection, cpu_s: float) -> None:
    """Answers pairs of formulas. The kernel ends the process when one pair takes more than ``cpu_s`` of CPU, which a
    busy machine does not shorten. An error of math-verify is False."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller's Ctrl-C: the pipe ends with the caller
    same = comparer()
    try:
        pipe.send(True)
        while True:
            text, answer = pipe.recv()
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            try:
                found = same(text, answer)
            except Exception:  # whatever a formula does to a parser, it is not an equal formula
                found = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.send(found)
    except (EOFError, ConnectionError):  # nobody asks any more
        return


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), float(sys.argv[2]))
