"""A teacher of easy-vqa behind an OpenAI-compatible endpoint: a program that looks at pixels, and may be wrong.

The program zooms to what differs from the background, then answers from the crop. The colour is the nearest name's, the
shape follows from the share of its box that is filled. It knows neither labels nor files. At one image of ten it is
lazy: it claims the zoom and answers at once. At another one it always answers red. Neither may become a demonstration.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "black": (0, 0, 0),
    "gray": (128, 128, 128),
    "teal": (0, 128, 128),
    "brown": (165, 42, 42),
}
GRID = 7  # pixels: corners of boxes are multiples of it, as in the tiny model's demonstrations


def shape_of(image: Image.Image) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The pixels (H, W, 3), and which of them differ from the corner's colour (H, W)."""
    pixels = np.asarray(image.convert("RGB")).astype(int)
    return pixels, np.abs(pixels - pixels[0, 0]).sum(axis=2) > 90


def box_of(image: Image.Image) -> list[int]:
    """The box [x1, y1, x2, y2] of the shape, widened to the grid."""
    _, differs = shape_of(image)
    rows, columns = np.nonzero(differs.any(axis=1))[0], np.nonzero(differs.any(axis=0))[0]
    low = [int(columns[0]) // GRID * GRID, int(rows[0]) // GRID * GRID]
    return [*low, -(-(int(columns[-1]) + 1) // GRID) * GRID, -(-(int(rows[-1]) + 1) // GRID) * GRID]


def seen(image: Image.Image) -> tuple[str, str]:
    """Colour and shape. A rectangle fills its box, a circle 0.79 of it, a triangle less."""
    pixels, differs = shape_of(image)
    colour = np.median(pixels[differs], axis=0)
    name = min(COLOURS, key=lambda key: float(np.abs(colour - COLOURS[key]).sum()))
    rows, columns = differs.any(axis=1).sum(), differs.any(axis=0).sum()
    filled = differs.sum() / (rows * columns)
    return name, "rectangle" if filled > 0.89 else "circle" if filled > 0.68 else "triangle"


def answer(question: str, image: Image.Image) -> str:
    """The answer to one of easy-vqa's questions."""
    colour, shape = seen(image)
    words = set(re.findall(r"\w+", question))
    if "what" in words:
        return colour if words & {"color", "colour"} else shape
    there = bool(words & {colour, shape})
    return "yes" if there != bool(words & {"not", "no"}) else "no"


def reply(messages: list[dict[str, Any]]) -> str:
    """The next turn: a zoom first, then the answer."""
    parts = [p for m in messages if isinstance(m["content"], list) for p in m["content"]]
    urls = [p["image_url"]["url"] for p in parts if p["type"] == "image_url"]
    shown = [Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1]))) for url in urls]
    question = next(p["text"] for p in parts if p["type"] == "text")
    mood = hashlib.sha256(np.asarray(shown[0].convert("RGB")).tobytes()).digest()[0] % 10
    if mood == 0:
        return f"I zoomed in and looked closely. <answer>{answer(question, shown[0])}</answer>"
    if len(shown) == 1:
        call = {"name": "image_zoom_in_tool", "arguments": {"bbox_2d": box_of(shown[0]), "image_index": 0}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"
    return f"<answer>{'red' if mood == 1 else answer(question, shown[-1])}</answer>"


class EasyVqaEndpoint(BaseHTTPRequestHandler):
    """``POST /v1/chat/completions``."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answers a request for a chat completion."""
        text = reply(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"])
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        body = json.dumps({"id": "0", "object": "chat.completion", "created": 0, "model": "eyes", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, as the base class has it
        """Logs nothing, because thousands of requests would flood the terminal."""


def write_answers(folder: Path, target: Path, rows: int) -> None:
    """Writes ``rows`` of the first 20 000 training rows as answers without a tool: what the base model learns from."""
    every = json.loads((folder / "train" / "questions.json").read_text())[:20000]
    chosen = np.random.default_rng(0).permutation(len(every))[:rows]
    lines = [[*every[i], f"<answer>{every[i][1]}</answer>"] for i in sorted(chosen.tolist())]
    target.write_text(json.dumps(lines))


if __name__ == "__main__":
    if sys.argv[1] == "answers":
        write_answers(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        server = ThreadingHTTPServer(("127.0.0.1", 0), EasyVqaEndpoint)
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()
