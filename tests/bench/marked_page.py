"""The part of a page between two marks, ``<!-- NAME -->`` and ``<!-- /NAME -->``, which a bench writes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MarkedPage:
    """A page that has the marks."""

    page: Path
    name: str

    @property
    def marks(self) -> tuple[str, str]:
        return f"<!-- {self.name} -->", f"<!-- /{self.name} -->"

    def parts(self) -> tuple[str, str]:
        """What stands before the first mark and after the last one.

        Raises:
            ValueError: the page does not have each mark once, in this order.
        """
        before, rest = self.page.read_text().split(self.marks[0])
        _, after = rest.split(self.marks[1])
        return before, after

    def write(self, text: str) -> None:
        """Puts ``text`` between the marks."""
        before, after = self.parts()
        draft = self.page.with_suffix(".draft")
        draft.write_text(f"{before}{self.marks[0]}\n\n{text}\n\n{self.marks[1]}{after}")
        draft.replace(self.page)


def marked(name: str) -> Callable[[str], MarkedPage]:
    """A type of ``argparse`` for a page with these marks: one without them is refused before anything is measured."""

    def page(path: str) -> MarkedPage:
        found = MarkedPage(Path(path), name)
        try:
            found.parts()
        except (OSError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"{path} is no page with {' and '.join(found.marks)}") from error
        return found

    return page
