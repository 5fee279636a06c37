"""Sets of trajectories: messages, or a response after the question."""

from __future__ import annotations

from typing import Any

from vtcli.data.sets.fields import Record, every, first
from vtcli.data.sets.own import asked
from vtcli.data.sets.row import SetRow, UnusableRow

NO_PATHS = (
    r"(?:(?<!\s)\s++#*+\s*+|(?<![\s#])#++\s*+|(?<![\s#*]))\**+User Image Path:.*",
    r"(?:(?<!\s)\s++#*+\s*+|(?<![\s#])#++\s*+|(?<![\s#*]))\**+User Image Size:[^\n]*",
)
"""Patterns of the authors' disks in Thyme's prompts."""


def _talk(record: Record, *paths: str, **more: Any) -> SetRow:
    """A row whose question and answer stand in its messages."""
    values: dict[str, Any] = {"answer": first(record, *paths), "messages": first(record, *paths), "unwrap": True}
    return SetRow(trajectory=True, **asked(record, *paths), **values | more)


def sharegpt(record: Record, **more: Any) -> SetRow:
    """ShareGPT rows as LLaMA-Factory reads them (CodeVision-SFT, Mini-o3-Coldstart, DeepEyesV2-SFT), with calls as text
    or as function_call; Mini-o3's conversations are a Python literal."""
    values: dict[str, Any] = {
        "system": first(record, "system"),
        "tools": first(record, "tools"),
        "images": every(record, "images", "image"),
        "source": first(record, "source_dataset", "data_source"),
    }
    return _talk(record, "conversations", "messages", **values | more)


def pyvision_sft(record: Record) -> SetRow:
    """Agents-X/PyVision-Image-SFT-Data: ShareGPT rows whose first turn is the whole of figure 8; the environment's own
    prompt takes its place. No row was seen."""
    strip = (
        r"^.*\n[^\w\n]*+user question:\**\s*",
        r"^\s*Answer the following Problem with an image provided and put the answer in the format of "
        r"\\boxed\{answer\}\s*",
        r"(?<!\s)\s*+Remember to place the final answer in the last part using the format:.*$",
    )
    return sharegpt(record, tools=None, strip=strip, prompt="card")


def openai(record: Record) -> SetRow:
    """OpenAI's fine-tuning JSON lines, Pixel-Reasoner's message_list: image_url parts, tool_calls with arguments as
    text, a tool's images in a turn of the user."""
    return _talk(record, "messages", "message_list", tools=first(record, "tools"))


def inspect(record: Record) -> SetRow:
    """inspect-ai's logs (FILE.eval, or JSON by --log-format json with ``reading: {rows: samples}``)."""
    source = first(record, "metadata.source", "metadata.dataset")
    return _talk(record, "messages", answer=first(record, "target"), source=source, crops="any")


def swift(record: Record) -> SetRow:
    """ms-swift's JSON lines, CodeDance-SFT: messages with tool_call and tool_response, images as paths. ``objects``
    holds texts for marks in the messages, which its trainer writes as its model writes boxes."""
    objects = first(record, "objects")
    held = [value for name, value in record.items() if name != "objects" and isinstance(value, str | list)]
    if objects and any(mark in str(value) for value in held for mark in ("<ref-object>", "<bbox>")):
        raise UnusableRow(
            "places to fill",
            ": its messages have <ref-object> or <bbox>, which its trainer fills in from objects. Write the texts in "
            "their places.",
        )
    return _talk(
        record,
        "messages",
        answer=first(record, "solution", "messages"),
        tools=first(record, "tools"),
        images=every(record, "images", "image"),
        source=first(record, "channel"),
        truth=first(record, "truth"),
    )


def trl(record: Record) -> SetRow:
    """TRL's vision rows: messages, or prompt and completion; typed parts; images, or one image."""
    return _talk(
        record,
        "messages",
        "prompt",
        answer=first(record, "answer", "solution", "completion", "messages"),
        response=first(record, "completion"),
        images=every(record, "images", "image"),
        source=first(record, "source"),
        tools=first(record, "tools"),
        truth=first(record, "truth"),
    )


def thyme_sft(record: Record) -> SetRow:
    """Kwai-Keye/Thyme-SFT, CodeV's SFT: one response with code and <sandbox_output> inside, image[0] is the question's.
    Code opens the path that the question names: the environment's own file takes its place."""
    return SetRow(
        **asked(record, "question"),
        answer=first(record, "response"),
        unwrap=True,
        named=r'User Image Path:(?:(?!User Image Path:)[^"\n])*+"([^"\n]+)"',
        strip=NO_PATHS,
        trajectory=True,
        response=first(record, "response"),
        inline="sandbox_output",
        images=every(record, "image", "images"),
        markers="any",  # as questions: the response's images are not the question's
    )
