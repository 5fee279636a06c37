"""Finding code and the answer in a policy turn's text. Pure, total, and linear in the text's length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vtcli.envs.code_protocol import Reading
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.foreign import between
from vtcli.protocols import DecodedTurn
from vtcli.schema import Call
from vtcli.signals.scorers.texts import boxed

FENCE = "```"
EMPTY = "the code is empty"


def read(reading: Reading, text: str) -> DecodedTurn:
    """The calls to carry out and the answer; calls are empty where the turn is final.

    >>> read(Reading("tag", "python"), "Look. <code>print(1)</code>").calls[0].arguments
    {'code': 'print(1)'}
    """
    start, end = ("<code>", "</code>") if reading.style == "tag" else ("<tool_call>", "</tool_call>")
    blocks, rest = split(text, start, end)
    calls = [_block(reading, block) for block in blocks] if reading.style == "tag" else _functions(reading, blocks)
    if not calls and reading.bare_fence:
        fenced, rest = split(text, f"{FENCE}python", FENCE)
        calls = [_block(reading, block) for block in fenced]
    written = parse_answer(rest)
    answer = boxed_answer(written) if reading.boxed and written is not None else written
    if written is not None and (reading.both == "answer" or not calls):
        return DecodedTurn(text, (), answer)
    if not calls:
        told = Call(raw="", name=reading.name, problem=reading.lacking) if reading.neither == "tell" else None
        return DecodedTurn(text, (told,) if told else (), None)
    return DecodedTurn(text, _chosen(reading, calls), answer)


def split(text: str, start: str, end: str) -> tuple[list[str], str]:
    """The texts between each start and the next end, and the text without them.

    The first end counts, also inside a string of the code: sampling stops there. The regular expressions of DeepEyes,
    CodeV and PyVision do the same.
    """
    parts = between(text, start, end)
    return parts[1::2], "".join(parts[::2])


def unfenced(block: str) -> str:
    """A block without the Markdown fence around it; fences further inside (in strings) stay.

    CodeV's code removes every fence of a block, also from strings: that changes what the policy wrote.
    """
    code = block.strip()
    if not code.startswith(FENCE):
        return block.strip("\r\n").rstrip()
    first, _, body = code.partition("\n")
    if not body:  # ```python print(1)``` on one line
        body = first[len(FENCE) :].removeprefix("python").removeprefix("py").lstrip()
    return body.rstrip().removesuffix(FENCE).rstrip()


def boxed_answer(answer: str) -> str | None:
    r"""Returns the content of the last ``\boxed{…}`` with quotes removed; None without one.

    >>> boxed_answer(r"\boxed{\frac{1}{2}}"), boxed_answer(r"\boxed{'B'}"), boxed_answer("B")
    ('\\frac{1}{2}', 'B', None)
    """
    found = boxed(answer)
    quoted = found is not None and len(found) > 1 and found[0] == found[-1] and found[0] in "\"'"
    return found[1:-1].strip() if found and quoted else found


def _block(reading: Reading, block: str) -> Call:
    code = unfenced(block)
    return Call(block, reading.name, {"code": code}, problem=None if code.strip() else EMPTY)


def _functions(reading: Reading, blocks: Sequence[str]) -> list[Call]:
    """Reads function calls. Text that is not JSON is skipped (verl's Hermes parser); a call that cannot run has a
    problem."""
    found: list[Call] = []
    for block in blocks:
        (call,) = parse_calls(f"<tool_call>{block}</tool_call>")
        if call.name is None:
            continue
        if call.name != reading.name:
            problem = f"there is no such function; the only one is {reading.name}"
        elif call.problem is not None:
            problem = call.problem
        else:
            code = (call.arguments or {}).get("code")
            problem = None if isinstance(code, str) and code.strip() else "'code' is missing or no text"
        found.append(replace(call, problem=problem))
    return found


def _chosen(reading: Reading, calls: Sequence[Call]) -> tuple[Call, ...]:
    if reading.several == "first":
        return (calls[0],)
    if reading.several == "last":
        return (calls[-1],)
    if reading.several == "each" or len(calls) == 1:
        return tuple(calls)
    # As one run, so that a later block sees the names of an earlier one even if names do not persist.
    code = "\n".join(str((call.arguments or {}).get("code", "")) for call in calls)
    whole = Call("\n".join(call.raw for call in calls), reading.name, {"code": code})
    return (whole if code.strip() else replace(whole, problem=EMPTY),)
