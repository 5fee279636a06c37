"""Sets of trajectories: messages, or a response after the question."""

from __future__ import annotations

from vtcli.data.sets.fields import Record, first
from vtcli.data.sets.own import mapped
from vtcli.data.sets.row import SetRow, UnusableRow

NO_PATHS = (
    r"(?:(?<!\s)\s++#*+\s*+|(?<![\s#])#++\s*+|(?<![\s#*]))\**+User Image Path:.*",
    r"(?:(?<!\s)\s++#*+\s*+|(?<![\s#])#++\s*+|(?<![\s#*]))\**+User Image Size:[^\n]*",
)
"""Patterns of the authors' disks in Thyme's prompts."""


SHAREGPT = {
    "question": "conversations messages",
    "answer": "conversations messages",
    "messages": "conversations messages",
    "system": "system",
    "tools": "tools",
    "images": "images image",
    "source": "source_dataset data_source",
}


def sharegpt(record: Record) -> SetRow:
    """ShareGPT rows as LLaMA-Factory reads them (CodeVision-SFT, Mini-o3-Coldstart, DeepEyesV2-SFT), with calls as text
    or as function_call; Mini-o3's conversations are a Python literal."""
    return mapped(record, SHAREGPT, unwrap=True)


def pyvision_sft(record: Record) -> SetRow:
    """Agents-X/PyVision-Image-SFT-Data: ShareGPT rows whose first turn is the whole of figure 8; the environment's own
    prompt takes its place. No row was seen."""
    strip = (
        r"^.*\n[^\w\n]*+user question:\**\s*",
        r"^\s*Answer the following Problem with an image provided and put the answer in the format of "
        r"\\boxed\{answer\}\s*",
        r"(?<!\s)\s*+Remember to place the final answer in the last part using the format:.*$",
    )
    return mapped(record, SHAREGPT, unwrap=True, tools=None, strip=strip, prompt="card")


def openai(record: Record) -> SetRow:
    """OpenAI's fine-tuning JSON lines, Pixel-Reasoner's message_list: image_url parts, tool_calls with arguments as
    text, a tool's images in a turn of the user."""
    columns = dict.fromkeys(("question", "answer", "messages"), "messages message_list")
    return mapped(record, {**columns, "tools": "tools"}, unwrap=True)


def inspect(record: Record) -> SetRow:
    """inspect-ai's logs (FILE.eval, or JSON by --log-format json)."""
    columns = {"question": "messages", "answer": "target", "messages": "messages"}
    return mapped(record, {**columns, "source": "metadata.source metadata.dataset"}, unwrap=True, crops="any")


def swift(record: Record) -> SetRow:
    """ms-swift's JSON lines, CodeDance-SFT: messages with tool_call and tool_response, images as paths. ``objects``
    holds texts for marks in the messages, which its trainer writes as its model writes boxes."""
    objects = first(record, "objects")
    # Without messages, ``columns`` of the configuration names another column.
    texts = record.get("messages") or [record[name] for name in record if name != "objects"]
    if objects and any(mark in str(texts) for mark in ("<ref-object>", "<bbox>")):
        raise UnusableRow(
            "places to fill",
            ": its messages have <ref-object> or <bbox>, which its trainer fills in from objects. Write the texts in "
            "their places.",
        )
    columns = {"question": "messages", "answer": "solution messages", "messages": "messages", "tools": "tools"}
    columns |= {"images": "images image", "source": "channel", "truth": "truth"}
    return mapped(record, columns, unwrap=True)


def trl(record: Record) -> SetRow:
    """TRL's vision rows: messages, or prompt and completion; typed parts; images, or one image."""
    columns = {"question": "messages prompt", "answer": "answer solution completion messages", "source": "source"}
    columns |= {"messages": "messages prompt", "response": "completion", "tools": "tools", "truth": "truth"}
    return mapped(record, {**columns, "images": "images image"}, unwrap=True)


def thyme_sft(record: Record) -> SetRow:
    """Kwai-Keye/Thyme-SFT, CodeV's SFT: one response with code and <sandbox_output> inside, image[0] is the question's.
    Code opens the path that the question names: the environment's own file takes its place. As questions, rows have
    more images than the question, those of the response."""
    columns = {"question": "question", "answer": "response", "response": "response", "images": "image images"}
    named = r'User Image Path:(?:(?!User Image Path:)[^"\n])*+"([^"\n]+)"'
    return mapped(record, columns, unwrap=True, named=named, strip=NO_PATHS, inline="sandbox_output", markers="any")
