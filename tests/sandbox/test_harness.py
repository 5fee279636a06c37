"""The namespace, what runs show, and how their errors read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from harness_process import Player, scene
from PIL import Image

from vtcli.sandbox.types import Help, RunLimits

PICTURE = scene()


def png(picture: np.ndarray, kind: str = "PNG") -> bytes:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, kind)
    return data.getvalue()


def world(**changes: Any) -> dict[str, Any]:
    given = {
        "pictures": (PICTURE,),
        "variables": {"image_clue_0": 0},
        "image_files": {"img.png": 0},
        "files": {"img.png": png(PICTURE)},
        "capture": ("show", "pil_show"),
    }
    return given | changes


def test_names_imports_and_functions_last(play: Player) -> None:
    runs = play("import math\nx = 2\ndef f(y):\n    return x * y", "print(f(math.pi))", **world())
    assert [r.executed.kind for r in runs] == ["no_output", "ok"]
    assert runs[1].output.startswith("6.28")


def test_without_persistence_every_run_starts_from_the_setup(play: Player) -> None:
    runs = play("x = 1\nprint(greeting)", "print(x)", **world(persist=False, prelude="greeting = 'hi'"))
    assert runs[0].output == "hi\n"
    assert runs[1].executed.error.endswith("NameError: name 'x' is not defined")


def test_prelude_and_before_each_run_and_are_not_the_policys_operations(play: Player) -> None:
    setup = world(
        variables={"image": 0},
        prelude="from PIL import ImageDraw\ndraw = ImageDraw.Draw(image)\nn = 0",
        before_each="n += 1\nwork = image.rotate(90)",
    )
    runs = play("print(n)", "draw.line((0, 0, 9, 9))\nprint(n)", **setup)
    assert [r.output for r in runs] == ["1\n", "2\n"]
    assert [[o.name for o in r.executed.operations] for r in runs] == [[], ["draw"]]


def test_the_last_frames_of_an_error_are_told(play: Player) -> None:
    ran = play.one("def f(n):\n    if n:\n        return f(n - 1)\n    return {}['k']\n\nf(40)", **world())
    lines = ran.executed.error.splitlines()
    assert ran.executed.kind == "error"
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyError: 'k'"
    assert lines[-2] == "  line 4, in f: return {}['k']"
    assert "30 calls before these" in lines[1]


ERRORS = {
    "syntax": ("x = (1\ny = 2", "SyntaxError: '(' was never closed"),
    "hostile text": (
        "class E(Exception):\n    def __str__(self): raise KeyError\nraise E",
        "E: (its message could not",
    ),
    "no text": ("class E(Exception):\n    def __str__(self): return 7\nraise E", "E: (its message could not"),
    "endless text": ("raise ValueError('x' * 50_000_000)", "ValueError: xxx"),
    "surrogates": ("raise ValueError('a\\ud800b')", "ValueError: a\\ud800b"),
    "of the base": ("class B(BaseException): pass\nraise B('b')", "B: b"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "no input": ("globals()['__builtins__'].input('?')", "EOFError: input() has nobody"),
    "no window": ("import cv2\ncv2.imshow('a', 1)", "RuntimeError: cv2.imshow has no window"),
    "deep": ("def f(): return f()\nf()", "RecursionError: maximum recursion depth"),
    "deep nest": ("x = " + "(" * 500 + ")" * 500, "SyntaxError: too many nested parentheses"),
    "group": ("e = ValueError(1)\nfor _ in range(2000): e = ExceptionGroup('g', [e])\nraise e", "ExceptionGroup: g (1"),
    "chain": ("try:\n    1/0\nexcept Exception as e:\n    raise ValueError('v') from e", "ValueError: v"),
    "type lies": (
        "class M(type):\n    __name__ = property(lambda s: 1/0)\nclass E(Exception, metaclass=M): pass\nraise E('e')",
        "E: e",
    ),
}


def test_an_error_keeps_its_type_and_its_length(play: Player, subtests: pytest.Subtests) -> None:
    for name, (source, said) in ERRORS.items():
        with subtests.test(name):
            ran = play.one(source, **world(help=Help(check=False)))
            assert ran.executed.kind == "error"
            assert said in ran.executed.error
            assert len(ran.executed.error) <= RunLimits().error_chars
            ran.executed.error.encode()


def test_exits_are_told_apart(play: Player) -> None:
    runs = play("import sys\nsys.exit(3)", "exit()", "raise SystemExit('done')", **world())
    assert [r.executed.kind for r in runs] == ["exit"] * 3
    assert "SystemExit: 3" in runs[0].executed.error


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\nos.unlink('img.png')", "deleting"),
    ],
)
def test_what_is_not_run_says_why(play: Player, source: str, said: str) -> None:
    ran = play.one(source, **world())
    assert ran.executed.kind == "refused"
    assert said in ran.executed.error


def test_a_flood_of_output_is_a_limit_and_its_beginning_is_kept(play: Player) -> None:
    runs = play(
        "print('a' * 5000)",
        "for _ in range(10**6):\n    try:\n        print('a' * 100)\n    except Exception:\n        break\nx = 1",
        "print(x)",
        **world(limits=RunLimits(output_bytes=1000)),
    )
    assert [r.executed.kind for r in runs] == ["limit", "limit", "ok"]
    assert len(runs[0].output) == len(runs[1].output) == 1000


def test_streams_are_made_anew_whatever_became_of_them(play: Player) -> None:
    runs = play(
        "import sys\nsys.stdout.close()\nsys.stderr = None",
        "print('here', '\\ud800', b'\\xff'.decode('latin1'))\nimport sys\nprint('there', file=sys.stderr)",
        "import os\nos.write(1, b'raw')",
        **world(),
    )
    assert runs[1].output == "here \\ud800 ÿ\nthere\n"
    assert [r.executed.kind for r in runs] == ["no_output", "ok", "ok"]


def test_the_world_is_put_right_before_each_run(play: Player) -> None:
    runs = play(
        "import os, sys, threading\nos.chdir('/')\nsys.settrace(lambda *a: None)\nsys.setrecursionlimit(10**9)",
        "import os, sys\nprint(os.path.exists('img.png'), sys.gettrace(), sys.getrecursionlimit())",
        **world(),
    )
    assert runs[1].output == "True None 5000\n"


def test_a_dataclass_and_main_are_what_a_script_expects(play: Player) -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "if __name__ == '__main__':\n    import pickle\n    print(pickle.loads(pickle.dumps(P(3))))"
    )
    assert play.one(source, **world()).output == "P(x=3)\n"


def test_help_can_be_switched_off(play: Player) -> None:
    off = world(help=Help(dedent=False, syntax=False, paths=False, clamp=False, check=False))
    assert play.one("  x = 1\n  print(x)", **off).executed.error.endswith("IndentationError: unexpected indent")
    assert "No such file" in play.one("from PIL import Image\nImage.open('/x/img.png')", **off).executed.error


def test_a_slip_in_the_path_is_led_to_the_input(play: Player, subtests: pytest.Subtests) -> None:
    for path in ["/data/img.png", "IMG.PNG", "img.jpg", "path_to_image.png", "./images/img.png"]:
        with subtests.test(path):
            source = f"from PIL import Image\nimport cv2\nprint(Image.open({path!r}).size, cv2.imread({path!r}).shape)"
            ran = play.one(source, **world())
            assert ran.output == "(320, 240) (240, 320, 3)\n"
            assert "img.png" in ran.executed.notes[0]


def test_a_file_of_the_codes_own_that_is_missing_stays_missing(play: Player) -> None:
    ran = play.one("from PIL import Image\nImage.open('processed_1.png')", **world())
    assert "FileNotFoundError" in ran.executed.error
    ran = play.one("import cv2\ncv2.imread('processed_1.png').shape", **world())
    assert "returned None" in ran.executed.notes[0]


WRITES = [
    "image_clue_0.load()[3, 4] = (1, 2, 3)",
    "image_clue_0.putpixel((3, 4), (1, 2, 3))",
    "image_clue_0.paste((1, 2, 3), (3, 4, 4, 5))",
    "from PIL import ImageDraw\nImageDraw.Draw(image_clue_0).point((3, 4), (1, 2, 3))",
]


def test_an_input_image_can_be_written_and_the_picture_stays(play: Player, subtests: pytest.Subtests) -> None:
    for write in WRITES:
        with subtests.test(write):
            look = "print(image_clue_0.getpixel((3, 4)))"
            runs = play(f"{write}\n{look}", look, **world(persist=False))
            assert [r.output for r in runs] == ["(1, 2, 3)\n", f"{tuple(PICTURE[4, 3].tolist())}\n"]


def test_the_video_readers_promised_name_can_be_imported(play: Player) -> None:
    ran = play.one("import decord\nfrom decord import VideoReader, cpu\nprint(VideoReader.__name__)", **world())
    assert ran.output == "VideoReader\n"
