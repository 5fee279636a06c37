"""What reads text from outside takes time in proportion to its length, and ends in a value or its own error."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from vtcli.benchmarks import files, forms
from vtcli.config import commandline
from vtcli.data.importers import crops, dialogues, media, options, texts
from vtcli.data.importers.media import Finder
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.text_rows import open_text
from vtcli.data.sets import fields, talks, verl
from vtcli.data.sets.row import RowFunction
from vtcli.data.sets.table import SETS
from vtcli.engines.openai.chat import native
from vtcli.engines.trials.outcome import TrialResult
from vtcli.envs import code_reading, code_writing, grounding, syntax
from vtcli.envs.code_protocol import Reading
from vtcli.envs.tool_calls import printable
from vtcli.errors import VtcliError
from vtcli.families import thoughts
from vtcli.filters import turns, words
from vtcli.foreign import between, load_json, visible
from vtcli.judging import model, rubrics
from vtcli.report import emergent, viewer
from vtcli.runs import track
from vtcli.sandbox.harness import capture, repair
from vtcli.sandbox.protocol import frames
from vtcli.sandbox.types import Help
from vtcli.schema import Sample
from vtcli.serve import answers, hosts, requests
from vtcli.signals import evidence, rules
from vtcli.signals.answer import read_index, read_map
from vtcli.store.artifacts import require_name

ROOT = Path(__file__).resolve().parent.parent
LONG = 40_000
LIMIT_S = 0.5
"""CPU time of one text; a reader that is linear takes some milliseconds, one that is not takes seconds."""


class TooSlow(BaseException):
    """No reader catches it."""


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Raises ``TooSlow`` in a reader that computes for too long; also inside of a regular expression."""

    def ring(number: int, frame: object) -> None:
        del number, frame
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def cost(read: Callable[[], object], limit_s: float) -> float:
    """The CPU seconds of ``read``; more than ``limit_s`` where it was ended."""
    begin = time.thread_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, 4 * limit_s)
    try:
        read()
    except TooSlow:
        return 4 * limit_s
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.thread_time() - begin


def written(marks: Sequence[str], length: int) -> Iterator[str]:
    """Long texts of the marks that a reader splits on: each again and again, one before many of another, and two in
    turn; with an end that fits nothing."""
    for mark in marks:
        yield mark * (length // len(mark))
        yield mark + " " * length + "\x01"
    for mark, other in itertools.pairwise([*marks, marks[0]]):
        yield mark + other * (length // len(other)) + "\x01"
        yield (mark + other) * (length // len(mark + other))


PLACE = Place("rows.jsonl", 0)
ROLLOUTS = verl.verl_rollouts({}).strip
CODE = {style: Reading(style, "python", bare_fence=True, boxed=True) for style in ("tag", "call")}


def demo(rule: Callable[..., object], **values: Any) -> Callable[[str], object]:
    """A filter's rule on one demonstration whose turns are the text."""

    def read(text: str) -> object:
        row = type("Row", (), {"key": 0})()
        said = [{"role": role, "content": text} for role in ("user", "assistant", "user", "assistant")]
        return rule([row], messages={0: said}, **values)

    return read


def dialogue(function: RowFunction, column: str) -> Callable[[str], object]:
    """A row whose policy's turn is the text."""

    def read(text: str) -> object:
        chat = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
        row = {column: chat, "messages": chat, "conversations": chat, "response": text, "question": text}
        return dialogues.read(function(row), Finder(()), PLACE)

    return read


def file_of(tmp_path: Path, name: str) -> Callable[[str], object]:
    """The rows of a file."""

    def read(text: str) -> object:
        file = tmp_path / name
        file.write_text(text)
        return [opened.read(row) for opened in (open_text(file),) for row in range(min(opened.rows, 3))]

    return read


TRUTHS: dict[str, list[dict[str, Any]]] = {
    "values": [{"axis": "xy", "value": [3, 4], "range": {"x": [0, 10], "y": [0, 10]}}],
    "counts": [{"value": [3], "total": 9}],
    "mathvista": [{"type": "list"}, {"type": "float", "precision": 1.0}, {"type": "text"}],
    "dynamath": [{"type": "multiple choice"}, {"type": "float"}, {}],
    "vlmblind": [{"task": task} for task in ("touching", "counting grid", "circled letter", "nested")],
    "vlmblind_kit": [{"task": task} for task in ("olympic", "counting grid", "circled letter")],
    "tablevqa": [{"split": split} for split in ("vtabfact", "fintabnetqa", "vwtq")],
    "tir": [{"task": task, "side": 2} for task in ("ocr", "jigsaw", "spot_difference", "word_search", "maze")],
    "chartqapro": [{}, {"exact": True}],
}
"""What a rule reads of a truth beside the answer: a task for each of its ways."""


def scored(rule: str) -> Callable[[str], object]:
    """A rule whose reply, answer and options are the text, each in turn and together."""

    def sample(answer: str, truth: dict[str, Any]) -> Sample:
        options = "".join(f"\n{letter}. {each}" for letter, each in zip("AB", truth.get("choices", ()), strict=False))
        return Sample("s", "mine", "answer", "test", f"Which?{options}", answer, (), (), {"rule": rule, **truth})

    def read(text: str) -> object:
        kinds = TRUTHS.get(rule, [{}])
        kinds = [*kinds, {"choices": [text, "b"]}] if rule in ("choices", "formula", "mmmu", "judge") else kinds
        found: list[object] = []
        for truth in [{**kind, "number": text} if rule == "mra" else kind for kind in kinds]:
            for reply, answer in ((text, "5"), ("5", text), (text, text)):
                found.append(rules.score(sample(answer, {"answers": [answer, "b"], **truth}), reply))
        return found

    return read


def readers(tmp_path: Path) -> dict[str, tuple[Callable[[str], object], str]]:
    """Public readers of text from a policy, a judge, a client or a row, and the marks that each splits on."""
    tags = '<tool_call> </tool_call> <answer> </answer> <think> </think> <code> </code> { [ " 1 \\'
    code = f"{tags} ```python ``` \\boxed{{ }} \n"
    limits = requests.RequestLimits()

    def asked(text: str) -> object:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        return requests.parse(json.dumps(body).encode(), ["m"], limits)

    def chat(text: str) -> object:
        from vtcli.engines.openai.chat import ChatMessage

        return native([ChatMessage("assistant", (text,)), ChatMessage("user", (text,))], lambda parts: str(parts))

    return {
        "families.calls": (lambda t: syntax.read_hermes(t), tags),
        "families.thoughts": (lambda t: (thoughts.outside(t), thoughts.after_thought(t)), "<think> </think> a"),
        "envs.code tag": (lambda t: code_reading.read(CODE["tag"], t), code),
        "envs.code call": (lambda t: code_reading.read(CODE["call"], t), code),
        "envs.grounding": (grounding.read, '<grounding> </grounding> <answer> </answer> { [ "'),
        "envs.harmless": (code_writing.harmless, "< / \n \r <|im_end|> \x1b a"),
        "judging.replies": (lambda t: model.read_score(t, (0, 1)), '```json ```\n \n < </think> { [ "score": 1 a'),
        "judging.replies fenced": (
            lambda t: model.read_score(f"```json\n{t}```", (0, 1)),
            '\n < </think> { [ " 1 ` a',
        ),
        "judging.quoting": (rubrics.quote, '" \\ < [INST] [A'),
        "importers.options": (lambda t: (options.texts_of(t), options.read([t, t], t)), "A ( ) . : \n [ ' 1 ,"),
        "importers.options listed": (lambda t: options.of_row([t[:99], "b"], t, t, PLACE), "A ( ) . : \n [ ' 1 ,"),
        "importers.texts": (
            lambda t: (
                texts.plain(t, verl.verl_rollouts({}).strip),
                texts.plain(t, talks.NO_PATHS),
                texts.unwrapped(t),
                texts.chat_of(t),
            ),
            "<image> <image_clue_1> <|vision_start|> <|image_pad|> \n # * User\\ Image\\ Path: <answer> \\boxed{ [{",
        ),
        "sets.fields": (lambda t: (fields.parsed(t), fields.literal(t)), "[ { ( ' \" - 1 , : '' + _"),
        "importers.json": (lambda t: fields.json_value(t.encode()), '[ { " 1 - . , : \\'),
        "importers.dialogues decoded": (dialogue(verl.verl_rollouts, "output"), "user\n assistant\n tool\n \n a"),
        "importers.dialogues inline": (
            dialogue(talks.thyme_sft, "conversations"),
            '<sandbox_output> </sandbox_output> <image> " \n',
        ),
        "importers.jsonl": (file_of(tmp_path, "a.jsonl"), '[ { } ] " , : \n 1 \\'),
        "importers.json list": (lambda t: file_of(tmp_path, "a.json")(f"[{t}]"), '[ { } ] " , : \n 1 \\'),
        "importers.csv": (lambda t: file_of(tmp_path, "a.csv")(f"a,b\n{t}"), '" , \n a'),
        "benchmarks.forms": (
            lambda t: (
                forms.inline_options({"text": t, "label": "A"}),
                forms.listed_options({"option": t}),
                forms.without_hint({"question": t}),
                forms.visual_probe({"__file__": t[:50], "images": [t], "problem": t}),
            ),
            "A ( ) . : ; , \n (A) A.\\  Question:",
        ),
        "filters.words": (lambda t: (words.words(t), words.grams(t[:5000])), "1 , . a 漢 ! \n"),
        "filters.form": (demo(turns.form), tags),
        "filters.language": (demo(turns.language), f"{tags} ```"),
        "filters.failed": (demo(turns.failed_calls), "Error error : \n \t a 1 Traceback"),
        "filters.repetition": (demo(turns.repetition), "a 1 , \n"),
        "serve.requests": (asked, "< <| |> <image> a \n"),
        "serve.requests body": (lambda t: requests.parse(t.encode(), ["m"], limits), '[ { } ] " , : \n 1 \\ - .'),
        "serve.hosts": (
            lambda t: (hosts.is_loopback(t), hosts.is_allowed(f"http://{t[:2000]}", ["a"])),
            ": 1 a [ ] . /",
        ),
        "serve.answers": (answers.last_thought, "<think> </think> <tool_call> </code> <code> <answer> a"),
        "engines.native": (chat, tags),
        "sandbox.repair": (lambda t: repair.repaired(t, Help()), "``` ~~~ \t \n a ' \" ( - \\n + #"),
        "report.viewer": (lambda t: (viewer.mark_tags(t), viewer.policy_step(t)), "<think> </think> < a"),
        "report.arguments": (lambda t: viewer.arguments_text({"code": t, "x": [t]}), '\\ " \n { a'),
        "importers.crops": (crops.has_places, "crop( [ 1 , ( ) . : a"),
        "benchmarks.files": (lambda t: (files.listed(t), media.listed(t)), "[ ( ' \" , 1 - {"),
        "sandbox.frames": (lambda t: frames.parse_json(t.encode()), '[ { } ] " , : 1 \\ -'),
        "sandbox.printed": (lambda t: capture.printed(["a.png", "b.png"], t), "a . \n ' [ , a.png"),
        "envs.observations": (
            lambda t: (code_writing.shorten(t, 500), code_writing.last_lines(t, 20), printable(t)),
            "\n \t a \x1b [",
        ),
        "serve.answers error": (lambda t: (answers.error(400, t), answers.thought(t)), '" < \x1b a'),
        "engines.trials": (TrialResult.read, '{ " [ 1 a :'),
        "trackers.values": (lambda t: (track.clip(t), [*track.flatten({"a": {t[:100]: t}})]), ". / a \n %"),
        "config.split": (lambda t: (commandline.split("x", t), commandline.quoted(t)), ", [ { ' \" \\ = a"),
        "store.names": (require_name, ": @ . / v a 1"),
        "signals.evidence": (evidence.without_options, "A ( ) . : \n 1 ["),
        "signals.answer": (lambda t: (read_index(t), read_map(t)), '{ " : 1 , - a'),
        "report.emergent": (emergent.written, ". crop( [ : ] , 1 a _ resize <tool_call>"),
        **{f"signals {rule}": (scored(rule), "\\frac{ } 1 , A. answer\\ is") for rule in rules.RULES},
        "foreign": (lambda t: (visible(t), between(t, "<a>", "</a>"), between(t, "```", "```")), "<a> </a> ``` \x1b a"),
    }


def marks_of(words_: str) -> list[str]:
    """Marks as one text, split at single spaces; ``\\ `` is a space in one. A space is a mark of every reader."""
    found = [part.replace("\0", " ") for part in words_.replace("\\ ", "\0").split(" ") if part]
    return [*found, " "]


def test_readers_of_text_from_outside_are_linear(tmp_path: Path) -> None:
    """Each gets 40,000 characters of each mark that it splits on. A text that is no text of its kind ends in the
    reader's own error."""
    failures: list[str] = []
    for name, (read, marks) in readers(tmp_path).items():
        for text in written(marks_of(marks), LONG):

            def once(read: Callable[[str], object] = read, text: str = text) -> None:
                with suppress(VtcliError, RowProblem, ValueError, requests.RequestError, frames.ProtocolError):
                    read(text)

            try:
                took = cost(once, LIMIT_S)
                if took > LIMIT_S:  # the first call may import what it needs
                    took = cost(once, LIMIT_S)
            except Exception as error:
                failures.append(f"{name}: {text[:30]!r}… raises {error!r:.200}")
                break
            if took > LIMIT_S:
                failures.append(f"{name}: {text[:30]!r}…{text[-10:]!r} takes {took:.2f} s")
                break
    assert not failures, "\n".join(failures)


PATTERN_LENGTH, PATTERN_LIMIT_S = 5_000, 0.03


def methods_of(name: str | None, source: str) -> str:
    """The method by which a compiled pattern is asked; "search" unless only ``match`` or only ``fullmatch`` is."""
    used = set(re.findall(rf"\b{name}\.(\w+)", source))
    return next((each for each in ("match", "fullmatch") if used == {each}), "search")


def built(value: object) -> Iterator[re.Pattern[Any]]:
    """The patterns in a variable of a module, also in a tuple, a list or a mapping."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        yield from itertools.chain.from_iterable(map(built, value))
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(built, value.values()))


def patterns() -> Iterator[tuple[str, str, re.Pattern[Any]]]:
    """Every regular expression that is written out in the package, with its place and its method; "search" where it is
    compiled first. Those that a module builds of parts while it is imported, and those of the public sets too."""
    for path in sorted([*(ROOT / "vtcli").rglob("*.py"), *(ROOT / "stages").rglob("*.py")]):
        source = path.read_text()
        tree, place = ast.parse(source), path.relative_to(ROOT)
        spaces: dict[str, Any] = {"re": re}
        names = {n.value: ast.unparse(n.targets[0]) for n in ast.walk(tree) if isinstance(n, ast.Assign)}
        of_parts = False
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args):
                continue
            method = ast.unparse(node.func).removeprefix("re.")
            if not method.isidentifier() or method == "escape":
                continue
            if not isinstance(node.args[0], ast.Constant):
                of_parts |= method == "compile"
                continue
            flags = [word for word in (*node.args[1:], *(k.value for k in node.keywords)) if "re." in ast.unparse(word)]
            value = eval(ast.unparse(flags[0]), spaces) if flags and method != "sub" else 0  # re.X | re.Y
            anchored = (
                methods_of(names.get(node), source)
                if method == "compile"
                else next((each for each in ("match", "fullmatch") if method == each), "search")
            )
            yield f"{place}:{node.lineno}", anchored, re.compile(node.args[0].value, value)
        if of_parts:
            for name, variable in vars(importlib.import_module(".".join(place.with_suffix("").parts))).items():
                for pattern in built(variable):
                    yield f"{place}: {name}", methods_of(name, source), pattern
    for name, function in SETS.items():
        row = function({})
        for pattern in (*row.strip, *([row.named] if row.named else ())):
            yield f"{name}: {pattern}", "search", re.compile(pattern, re.DOTALL)


_PART = re.compile(
    r"""(?sx) \\(?P<escaped>[ux][0-9a-fA-F]{2,4}|.)
    | (?P<between>\((?:\?(?:P?<[A-Za-z_]\w*>|<?[=!]|[:>]|[aiLmsux-]+[:)]))?|\{\d*,?\d*\}|[])|*+?^$])
    | (?P<opens>\[\^?) | (?P<any>\.) | (?P<plain>.)"""
)
"""One part of a pattern's source: an escape, what separates literals, the beginning of a set, any, or a character."""

_CLASSES = {"d": "1", "s": " \n", "w": "a", "S": "x", "D": "x", "W": " ", "b": "", "B": "", "A": "", "Z": ""}


def marks_in(pattern: re.Pattern[Any]) -> tuple[list[str], list[str]]:
    """The literals of a pattern, and one character of each class that it repeats or chooses from."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    runs, singles, run, in_set = dict[str, None](), dict[str, None](), "", False
    for part in _PART.finditer(source):
        found = part["plain"] or ""
        if part["escaped"]:
            plain = part["escaped"][1:] and chr(int(part["escaped"][1:], 16))
            chars = plain or _CLASSES.get(part["escaped"])
            found, chars = (plain or part["escaped"], "") if chars is None or plain else ("", chars)
            singles.update(dict.fromkeys(chars))
        elif part["any"] and not in_set:
            singles.update({"x": None, "\n": None})
        elif in_set and not found and part[0] != "]":
            found = part[0][0]  # a character of a set, which means something elsewhere
        if found and in_set:
            singles[found] = None
        elif found:
            run += found
            continue
        runs.update({run: None} if run else {})
        run, in_set = "", bool(part["opens"]) or (in_set and part[0] != "]")
    runs.update({run: None} if run else {})
    return [*runs][:6], [*dict.fromkeys([*[*singles][:4], " ", "\n", "1", *(run[0] for run in runs)])][:8]


def test_the_marks_of_a_pattern_are_its_literals_and_classes() -> None:
    assert marks_in(re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)) == (
        ["```", "json"],
        [" ", "\n", "x", "1", "`", "j"],
    )
    assert marks_in(re.compile(r"(?<!\d)([A-J]+)\.\u4e00{2,3}")) == ([".\u4e00"], ["1", "A", "-", "J", " ", "\n", "."])
    assert marks_in(re.compile(rb"[.*]|\x41")) == (["A"], [".", "*", " ", "\n", "1", "A"])


@pytest.mark.slow
def test_no_pattern_of_the_package_is_super_linear() -> None:
    """Repeats of a pattern's own literals and classes; ``(a+)+``, two quantifiers over one class, and ``.*?`` behind a
    mark that may come again all take more than linear time. Slow: a rule about files, 10 s of CPU time."""
    failures, known = list[str](), set[tuple[Any, int]]()
    for where, method, pattern in patterns():
        if (pattern.pattern, pattern.flags) in known:
            continue
        known.add((pattern.pattern, pattern.flags))
        runs, singles = marks_in(pattern)
        every = [*runs, *singles]
        candidates = [mark * (PATTERN_LENGTH // len(mark)) for mark in every]
        for mark, single in itertools.product(every, singles):
            candidates += [
                mark + single * PATTERN_LENGTH + "\x01",
                (mark + single) * (PATTERN_LENGTH // len(mark + single)),
            ]
        for text in candidates:
            given = text.encode("latin-1", "ignore") if isinstance(pattern.pattern, bytes) else text
            ask = getattr(pattern, method, None) if method in ("match", "fullmatch") else None

            def once(ask: Any = ask, pattern: Any = pattern, given: Any = given) -> None:
                ask(given) if ask else [None for _ in pattern.finditer(given)]

            if (
                cost(once, PATTERN_LIMIT_S) > PATTERN_LIMIT_S
                and (took := cost(once, PATTERN_LIMIT_S)) > PATTERN_LIMIT_S
            ):
                failures.append(f"{where}: {pattern.pattern!r:.100} takes {took:.2f} s on {text[:20]!r}…{text[-10:]!r}")
                break
    assert len(known) > 60
    assert not failures, "\n".join(failures)


def test_json_from_outside_has_a_bounded_depth() -> None:
    deep = [("[" * n + "]" * n) for n in (100, 101, 100_000)] + ['{"a":' * 101 + "1" + "}" * 101]
    assert load_json(deep[0])
    for text in deep[1:]:
        for given in (text, text.encode()):
            with pytest.raises(ValueError, match="levels"):
                load_json(given)
    with pytest.raises(ValueError, match="digits"):
        load_json("1" * 5000)
