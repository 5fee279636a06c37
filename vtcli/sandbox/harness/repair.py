"""Small repairs of source text before it is compiled (CodeV, appendix 12: "auto-format and patch minor issues").

Pure. Text that compiles is not repaired, and every repair leaves a note that the policy reads. The sandboxes of the
field rewrite source silently, which trains on code that never ran.
"""

from __future__ import annotations

import re
import textwrap

from vtcli.sandbox.types import Help

_FENCE = re.compile(r"^[ \t]*+(?:```|~~~)[ \t]*+[\w+-]*+[ \t]*+$")
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
_SPACES = {"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\ufeff": "", "\u2060": ""}
_QUOTES = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2032": "'", "\u2033": '"'}
_DASHES = {"\u2212": "-", "\u2013": "-", "\uff08": "(", "\uff09": ")", "\uff0c": ",", "\uff1a": ":", "\u00d7": "*"}


def compiles(source: str) -> bool:
    """Returns True if Python compiles the text. A text that exhausts its parser does not compile either."""
    try:
        compile(source, "<code>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def repaired(source: str, wanted: Help) -> tuple[str, tuple[str, ...]]:
    """The text to run and what was changed in it. The first repair after which it compiles is the last one; a text
    that no repair saves is returned as it was given, so that the error names the policy's own lines."""
    if compiles(source):
        return source, ()
    text, notes = source, list[str]()
    for switch, repair in ((wanted.dedent, _unfenced), (wanted.dedent, _dedented), (wanted.syntax, _retyped)):
        if not switch:
            continue
        changed, note = repair(text)
        if changed == text:
            continue
        text = changed
        notes.append(note)
        if compiles(text):
            return text, tuple(notes)
    return source, ()


def _unfenced(source: str) -> tuple[str, str]:
    """The first fenced block, or the text without a lone fence. Only whole lines are fences, and none behind quotes
    that are still open: it is part of a string."""
    lines = source.splitlines()
    fences = [i for i, line in enumerate(lines) if _FENCE.match(line)]
    if not fences or _in_string("\n".join(lines[: fences[0]])):
        return source, ""
    note, blocks = "removed the Markdown fence around the code", len(fences) // 2
    if blocks:
        kept = lines[fences[0] + 1 : fences[1]]
        note += f", and ran only the first of {blocks} fenced blocks" if blocks > 1 else ""
    else:
        kept = [line for i, line in enumerate(lines) if i != fences[0]]
    return "\n".join(kept) + "\n", note


def _in_string(before: str) -> bool:
    return any(before.count(quotes) % 2 for quotes in ('"""', "'''"))


def _dedented(source: str) -> tuple[str, str]:
    text = textwrap.dedent(source)
    if text == source or not compiles(text):
        # A first line that follows its tag directly has no indentation, while all others have one in common.
        first, _, rest = source.partition("\n")
        other = first.strip() + "\n" + textwrap.dedent(rest)
        text = other if compiles(other) else text
    return text, "removed the common indentation"


def _mixes(source: str) -> bool:
    starts = [line[: len(line) - len(line.lstrip())] for line in source.splitlines()]
    return any("\t" in s for s in starts) and any(" " in s for s in starts)


def _retyped(source: str) -> tuple[str, str]:
    """Characters that only a word processor writes, tabs among spaces, and line ends that are written out."""
    found: list[str] = []
    text = source.replace("\r\n", "\n").replace("\r", "\n").replace("\x0c", "")
    for name, table in (("spaces", _SPACES), ("quotes", _QUOTES), ("signs", _DASHES)):
        changed = text.translate(str.maketrans(table))
        if changed != text and not compiles(text):
            found.append(f"typographic {name}")
            text = changed
    if _mixes(text) and not compiles(text):
        text = textwrap.dedent(_INDENT.sub(lambda found: found[0].expandtabs(4), text))
        found.append("tabs among spaces")
    if "\\n" in text and "\n" not in text.strip() and not compiles(text):
        text = text.replace("\\n", "\n")
        found.append("written-out line ends")
    return text, "replaced " + (", ".join(found) if found else "line ends")
