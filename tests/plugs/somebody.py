"""Somebody else's module: one thing of every kind that a configuration can name."""

from __future__ import annotations

import json
import re

import numpy as np

from vtcli.data.generators.item import Item, item_id, stream
from vtcli.data.sets.row import SetRow, UnusableRow
from vtcli.data.teachers.scripted import Act, Percept, TaskScript
from vtcli.engines.openai.chat import TextChat
from vtcli.engines.teachers.card import OpenTeacher, TeacherCard
from vtcli.envs.card import EnvCard
from vtcli.envs.syntax import CallSyntax
from vtcli.errors import ToolError
from vtcli.families.calls import parse_answer
from vtcli.protocols import Case, DecodedTurn, Ruling, Syntax, ToolOutput
from vtcli.rewards import broken, need, verdict
from vtcli.schema import Call, CallResult, Completion, Observation
from vtcli.tools.arguments import schema

NAMES = ("letters",)  # of the signal
LOOK = re.compile(r"<look>([\d ]+)</look>")


# An environment with an action syntax of its own: <look>x1 y1 x2 y2</look> cuts a box out of the first image.


def read(text):
    calls = tuple(Call(m.group(0), "look", {"box": [int(v) for v in m.group(1).split()]}) for m in LOOK.finditer(text))
    return DecodedTurn(text, calls, parse_answer(text))


class Look:
    syntax = Syntax(("</look>",), read, "user")

    def __init__(self, sample, inputs, greeting):
        self.sample, self.images, self.greeting = sample, inputs.images, greeting

    async def reset(self):
        return self.greeting, self.sample.question

    async def step(self, turn, images):
        if not turn.calls:
            return None
        call = turn.calls[0]
        x1, y1, x2, y2 = call.arguments["box"]
        scale = images[0].width / images[0].view_width
        pixels = self.images.full(images[0])[int(y1 * scale) : int(y2 * scale), int(x1 * scale) : int(x2 * scale)]
        ref = self.images.add(np.ascontiguousarray(pixels), 0, {"op": "look", "box": [x1, y1, x2, y2]})
        result = CallResult("look", call.arguments, "ok", "seen", 0.0, (len(images),))
        return Observation("<image>seen", (ref,), (result,))

    async def close(self):
        return None


class Words:
    """How scripts write turns for it."""

    def act(self, name, arguments, image):
        return "<look>{} {} {} {}</look>".format(*arguments["bbox_2d"])

    def reply(self, answer):
        return f"<answer>{answer}</answer>"


def open_look(sample, inputs):
    return Look(sample, inputs, "Look.")


def look(*, speaks: bool = True) -> EnvCard:
    return EnvCard("look", open_look, dialect=Words() if speaks else None)


def no_card():
    return "look"


# A syntax for calls of native tools.


def read_brackets(text):
    found = re.findall(r"\[\[(\w+) (.*?)\]\]", text)
    return DecodedTurn(text, tuple(Call(args, name, json.loads(args)) for name, args in found), parse_answer(text))


def write_brackets(name, arguments):
    return f"[[{name} {json.dumps(arguments)}]]"


def brackets() -> CallSyntax:
    return CallSyntax(read_brackets, write_brackets, "Write [[name arguments]].", "[[...]]", reply="user")


# A native tool.


class Darken:
    name = "image_darken_tool"
    schema = schema("image_darken_tool", "Make an image darker.", {"by": {"type": "integer"}}, ["by"])

    def __init__(self, limit: int = 200):
        self.limit = limit

    def __call__(self, pixels, ref, arguments):
        by = int(arguments["by"])
        if by > self.limit:
            raise ToolError(f"by must be at most {self.limit}")
        return ToolOutput(np.clip(pixels.astype(int) - by, 0, 255).astype(np.uint8), {"op": "darken", "by": by})


# A task, its script, and the rule that scores it; an importer is a task that reads.


def act(item, rng, teacher, view):
    return Act([("image_rotate_tool", {"angle": 90})], item.answer, True)


def perceive(item, rng, view, grid):
    return Percept(item.pixels, (("Which shade?", item.answer),))


def shades(seed, item, split, *, side, form="answer"):
    rng = stream(seed, "my-shades", split, item)
    value = int(rng.integers(256))
    return Item(
        id=item_id("my-shades", split, item),
        task="my-shades",
        pixels=np.full((side, side, 3), value, np.uint8),
        question="Which shade?",
        tool_question="",
        answer=str(value),
        tool_answer="",
        truth={"rule": "near", "shade": value},
        tools=(),
        script=TaskScript(act, perceive),
    )


def rows(seed, item, split, *, words, form="answer"):
    pixels = np.full((56, 56, 3), 10 * item, np.uint8)
    return Item(item_id("mine", split, item), "mine", pixels, words[item], "", words[item], "", {"rule": "exact"}, ())


def row(record, scale=1):
    if record["state"] == "draft":
        raise UnusableRow("a draft", " is a draft.")
    box = {"label": "it", "box": [side * scale for side in record["box"]]}
    return SetRow(question=record["q"], answer=record["a"], images=[record["file"]], boxes=[box])


def near(sample, text):
    right = text.isdigit() and abs(int(text) - sample.truth["shade"]) <= 5
    return float(right), int(right)


# A signal, a reward, an advantage, a selection and a loss.


# A teacher that says one thing to everybody.


class Parrot:
    version = 0

    def __init__(self, chat, says):
        self.chat, self.says = chat, says

    async def complete(self, request):
        ids = self.chat.encode_turn(self.says)
        return Completion(ids, (0.0,) * len(ids), "stop")


def parrot(*, says):
    async def opened(inputs):
        async def close():
            return None

        return OpenTeacher(Parrot(TextChat(), says), TextChat(), close)

    return TeacherCard("parrot", opened)


# An engine that says one thing, a judge with one score, and a tracker that writes what it hears to a file.


class OneTurn:
    version, clock, cache_tokens = 0, None, None

    def __init__(self, chat, says):
        self.ids = chat.encode_turn(says)

    async def complete(self, request):
        return Completion(self.ids, (0.0,) * len(self.ids), "stop")

    def close(self):
        return None


def open_engine(engine, family, view, limits, place, *, says):
    return OneTurn(family.chat, says)


class Lenient:
    name, trouble = "lenient", ""

    def __init__(self, score):
        self.score = score

    def knows(self, about, sample):
        return True

    async def start(self, rubrics, *, eager=True):
        return None

    async def __call__(self, case):
        return Ruling(self.score)

    async def close(self):
        return None


def open_judge(*, images, home, score):
    return Lenient(score)


async def asked(trajectory, judge):
    case = Case("answer", "codev_answer", {}, trajectory.images, trajectory)
    return {"asked": (await judge(case)).score}


class Heard:
    run_id = None

    def __init__(self, path):
        self.path = path

    def __getattr__(self, kind):
        def hear(*values, **more):
            with self.path.open("a") as file:
                file.write(json.dumps([kind, *values, *more.values()], default=str) + "\n")

        return hear


def open_tracker(context, *, file):
    return Heard(context.home / file)


async def letters(trajectory):
    return {"letters": sum(len(turn.text) for turn in trajectory.policy_turns)}


def brief(signals_G, *, most):
    return [None if broken(s) else verdict({"brief": 1 - min(need(s, "letters"), most) / most}) for s in signals_G]


def centred(groups, *, scale):
    found = []
    for group in groups:
        mean = sum(m.reward or 0.0 for m in group.members) / len(group.members)
        found.append([(scale * ((m.reward or 0.0) - mean),) * len(m.trajectory.policy_turns) for m in group.members])
    return found


def last_alone(groups, credit, wanted, *, least):
    """Only the last member of each group is learnt from, however small its advantage is."""
    assert wanted >= least
    return [[None] * (len(values) - 1) + [values[-1]] for values in credit]


def constant(logp, old, advantage, rows, config, *, height):
    assert rows.shape == logp.shape
    return height + 0 * logp, (advantage != 0).float()


# A rule of `vtcli filter`.


def without(rows, *, digit):
    return [f"has a {digit}" if digit in row.id else None for row in rows]
