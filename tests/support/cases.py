"""A table of cases as one test, or within one, which runs all of them and lists those that fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def failures(table: Iterable[Sequence[Any]], check: Callable[..., None]) -> list[str]:
    """The cases of a table over which ``check`` fails, as texts; for cases that share what a test has opened."""
    found: list[str] = []
    for case in table:
        try:
            check(*case)
        except Exception as error:
            found.append(f"{case!r}: {type(error).__name__} {error}"[:2000])
    return found


def each_case(
    names: str | Iterable[str], cases: Iterable[Any], ids: Any = None
) -> Callable[[Callable[..., None]], Any]:
    """Makes one test of a function and its cases, given as to ``pytest.mark.parametrize``.

    Every case runs, with a ``tmp_path`` and a ``monkeypatch`` for itself; other fixtures are shared by all.
    The test is skipped if every case was.

    Raises:
        AssertionError: (in the test) lists each case that failed with its error; its cause is the first of them.
    """
    keys = [key.strip() for key in names.split(",")] if isinstance(names, str) else list(names)
    single = isinstance(names, str) and len(keys) == 1
    cases = list(cases)
    assert not [case for case in cases if getattr(case, "marks", ())], "a case of a table takes no marks"
    rows = [case.values if hasattr(case, "marks") else (case,) if single else tuple(case) for case in cases]
    labels = list(map(ids, [row[0] for row in rows])) if callable(ids) else list(ids or map(_label, rows))
    assert rows and all(len(row) == len(keys) for row in rows) and len(labels) == len(rows), f"not a table of {keys}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test, updated=())  # attributes of hypothesis stay with its own test
        def run(**fixtures: Any) -> None:
            failures: list[tuple[str, BaseException]] = []
            skipped: list[str] = []
            for number, (label, row) in enumerate(zip(labels, rows, strict=True)):
                own = dict(fixtures)
                if "tmp_path" in own:
                    own["tmp_path"] = fixtures["tmp_path"] / str(number)
                    own["tmp_path"].mkdir()
                with pytest.MonkeyPatch.context() as patch:
                    if "monkeypatch" in own:
                        own["monkeypatch"] = patch
                    try:
                        test(**dict(zip(keys, row, strict=True)), **own)
                    except (Exception, pytest.fail.Exception) as error:
                        failures.append((label, error))
                    except pytest.skip.Exception as skip:  # else the cases after it would not run
                        skipped.append(f"{label}: {skip}")
            listed = "\n\n".join(f"{label}:\n{type(error).__name__}: {error}" for label, error in failures)
            if failures:
                raise AssertionError(f"{len(failures)} of {len(rows)} cases failed\n\n{listed}") from failures[0][1]
            if len(skipped) == len(rows):
                pytest.skip("; ".join(skipped))

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left)
        run.pytestmark = list(getattr(test, "pytestmark", ()))
        del run.__wrapped__  # pytest would ask the test for its fixtures
        return run

    return decorate


def _label(row: tuple[Any, ...]) -> str:
    text = ", ".join(map(repr, row))
    return text if len(text) <= 200 else f"{text[:200]}…"
