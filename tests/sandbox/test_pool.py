"""Runs, statuses and state, through real processes at every tier."""

from __future__ import annotations

import asyncio
import errno
import tempfile
import time

import numpy as np
import pytest
from sandbox_world import World, idle_cpu, picture, setup

from vtcli.errors import ConfigError, VtcliError
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.sandbox.processes import proc
from vtcli.sandbox.protocol import arena
from vtcli.sandbox.types import EpisodeLostError, Operation, OutputImage, Picture, RunLimits, Status

QUICK = RunLimits(wall_s=1.0)


def test_names_persist_and_text_comes_back(world: World) -> None:
    a, b, c = world.runs("x = 41", "print(x + 1)", "import math\nprint(math.pi)")
    assert a.status is Status.NO_OUTPUT
    assert (b.status, b.output) == (Status.OK, "42\n")
    assert c.output.startswith("3.14")
    assert b.wall_s > 0 and b.cpu_s >= 0


COPIES = """
import os, pathlib, shutil
open("a", "w").write("x")
shutil.copy2("a", "b")
pathlib.Path("b").touch()
pathlib.Path("c").touch()
os.utime("c")
try:
    os.utime("missing")
except FileNotFoundError:
    print(sorted(os.listdir()))
"""


def test_copies_with_their_times_and_touched_files_work_where_no_time_may_be_set(world: World) -> None:
    (result,) = world.runs(COPIES)
    assert (result.status, result.output) == (Status.OK, "['a', 'b', 'c']\n"), result.error


def test_an_image_goes_in_and_its_crop_comes_out(world: World) -> None:
    (result,) = world.runs("image.crop((4, 6, 36, 26)).show()", capture=("pil_show",))
    assert result.status is Status.OK, result.error
    (produced,) = result.images
    expected = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)[6:26, 4:36]
    assert np.array_equal(produced.pixels, expected)
    assert produced.verified is None  # nobody asked
    assert produced.operations[0].name == "crop"


def test_an_image_file_is_in_the_workspace_and_cannot_be_confused(world: World) -> None:
    import cv2

    pixels = np.full((20, 30, 3), (10, 200, 90), np.uint8)
    encoded = cv2.imencode(".png", pixels[:, :, ::-1])[1].tobytes()
    sources = ("from PIL import Image\nprint(Image.open('in/a.png').size)", "import os; os.remove('in/a.png'); 1/0")
    results = world.runs(
        *sources,
        sources[0],
        pictures=(Picture(pixels, encoded),),
        variables={},
        image_files={"in/a.png": 0},
    )
    assert [r.status for r in results] == [Status.OK, Status.ERROR, Status.OK], results
    assert results[2].output == "(30, 20)\n"


DEAF = """
import signal
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
while True: pass
"""


FAILURES = [
    ("1/0", Status.ERROR),
    ("raise KeyboardInterrupt", Status.ERROR),
    ("raise BaseException('x')", Status.ERROR),
    ("import sys\nsys.exit(3)", Status.EXIT),
    ("getattr(__import__('os'), '_ex' + 'it')(0)", Status.EXIT),
    ("import ctypes\nctypes.string_at(0)", Status.CRASH),
    ("while True: pass", Status.TIMEOUT),
    ("x = 10**(10**8)", Status.TIMEOUT),
    ("import time\ntime.sleep(1000)", Status.TIMEOUT),
    (DEAF, Status.TIMEOUT),
    ("x = bytearray(8 << 30)", Status.ERROR),
    ("print('a' * (1 << 20))\n" * 20, Status.LIMIT),
    ("import os\nfor _ in range(20): os.write(1, b'a' * (1 << 20))", Status.LIMIT),
    ("kept = []\nfor _ in range(200): kept.append(open('f', 'w'))", Status.LIMIT),
    (
        "import os\nkept = []\ntry:\n    while True: kept.append(os.dup(1))\nexcept OSError: print(len(kept))",
        Status.LIMIT,
    ),
    ("x = '\\ud800'\nx.encode()", Status.ERROR),
    ("a\0b", Status.REFUSED),
    ("'\ud800'", Status.REFUSED),
    ("#" + "a" * 70_000, Status.REFUSED),
    ("(" * 20_000, Status.ERROR),
]


def test_a_failure_has_its_status_and_changes_nothing(world: World, subtests: pytest.Subtests) -> None:
    for source, status in FAILURES:
        with subtests.test(ascii(source[:60])):
            first = "x = 7\nopen('kept.txt', 'w').write('before')"
            last = "print(x, open('kept.txt').read(), sorted(__import__('os').listdir('.')))"
            started = time.monotonic()
            _, failed, after = world.runs(first, source, last, limits=QUICK)
            assert failed.status is status, (failed.status, failed.error)
            assert failed.error
            assert (after.status, after.output) == (Status.OK, "7 before ['kept.txt']\n"), after
            assert time.monotonic() - started < 15


def test_files_are_as_they_were_after_a_failure(world: World) -> None:
    before = """
import os
os.makedirs('d/e'); open('d/e/f', 'w').write('one'); open('g', 'w').write('two')
try: os.symlink('g', 'link')
except OSError: pass
"""
    bad = """
import os, shutil
shutil.rmtree('d'); open('g', 'a').write('more'); open('new', 'w'); os.mkdir('d'); open('d/x', 'w')
raise ValueError
"""
    look = """
import os
for where, folders, files in sorted(os.walk('.')):
    print(where, sorted(folders), [(f, open(os.path.join(where, f)).read()) for f in sorted(files)])
print(os.path.islink('link') and os.readlink('link'))
"""
    _, expected, failed, got = world.runs(before, look, bad, look)
    assert failed.status is Status.ERROR
    assert expected.status is Status.OK and got.output == expected.output


def test_what_cannot_be_pickled_survives_a_failure(world: World) -> None:
    results = world.runs(
        "def count():\n    n = 0\n    while True:\n        yield n\n        n += 1\ng = count(); next(g)",
        "next(g); next(g); 1/0",
        "print(next(g))",
    )
    assert results[2].output == "1\n"


def test_closed_streams_signals_timers_and_threads_do_not_reach_the_next_run(world: World) -> None:
    results = world.runs(
        "import os\nos.close(1); os.close(2)",
        "print('still here')",
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.05)",
        "import time\ntime.sleep(0.3)\nprint('alive')",
        "import threading\ndef loop():\n    while True: pass\nthreading.Thread(target=loop, daemon=True).start()",
        "print(threading.active_count())",
    )
    assert results[1].output == "still here\n"
    assert results[3].output == "alive\n", results[3]
    assert results[5].output == "1\n"


def test_a_thread_left_behind_burns_no_cpu_between_runs(world: World) -> None:
    async def go() -> float:
        episode = await world.pool.open(setup(limits=QUICK))
        source = (
            "import threading\ndef loop():\n    while True: pass\nthreading.Thread(target=loop, daemon=True).start()"
        )
        assert (await episode.run(source)).status is Status.NO_OUTPUT

        await asyncio.sleep(0.1)
        return await idle_cpu(world, episode)

    assert world.do(go()) < 0.3


def test_without_transactions_state_leaks_and_a_kill_starts_again(world: World) -> None:
    results = world.runs(
        "x = 1",
        "x = 2\n1/0",
        "print(x)",
        "while True: pass",
        "print('x' in globals(), image.size)",
        transactions=False,
        limits=QUICK,
        prelude="y = 5",
    )
    assert [r.status for r in results] == [
        Status.NO_OUTPUT,
        Status.ERROR,
        Status.OK,
        Status.TIMEOUT,
        Status.OK,
    ], results
    assert results[2].output == "2\n"
    assert results[4].output == "False (64, 48)\n"


def test_without_persistence_every_run_starts_from_the_setup(world: World) -> None:
    for transactions in (True, False):
        results = world.runs(
            "z = 1; open('a', 'w')",
            "print('z' in globals(), y)",
            persist=False,
            prelude="y = 5",
            transactions=transactions,
        )
        assert results[1].output == "False 5\n", results


def test_a_start_that_fails_loses_one_episode_and_a_setup_that_cannot_work_is_named(world: World) -> None:
    """Defect 26: the first is no configuration error, which would end the run."""
    with pytest.raises(EpisodeLostError, match="ZeroDivisionError") as lost:
        world.open(prelude="1/0")
    assert not isinstance(lost.value, VtcliError)
    with pytest.raises(ConfigError, match="picture 3"):
        world.open(variables={"image": 3})
    with pytest.raises(ConfigError, match="cannot be read"):
        world.open(videos={"video": "/nonexistent.mp4"})
    with pytest.raises(ConfigError, match="encoded"):
        world.open(image_files={"a.png": 0})
    with pytest.raises(ConfigError, match="kept_output_chars=400000; at most 60000"):
        world.open(limits=RunLimits(kept_output_chars=400_000))
    with pytest.raises(ConfigError, match="images=4000; at most 40"):
        world.open(limits=RunLimits(images=4000))
    assert world.runs("print(1)")[0].output == "1\n"


def test_a_machine_without_descriptors_loses_episodes_and_verifications(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    cropped = Operation("crop", {"box": [0, 0, 8, 8]}, "pil", 0)
    with monkeypatch.context() as patch:
        patch.setattr(arena, "sealed", full)
        with pytest.raises(EpisodeLostError, match="Too many open files"):
            world.open()
        image = OutputImage(np.zeros((8, 8, 3), np.uint8), "show", operations=(cropped,))
        with pytest.raises(EpisodeLostError, match="Too many open files"):
            world.do(world.pool.verify([picture()], [image]))
    assert world.runs("print(1)")[0].output == "1\n"


def test_the_longest_output_and_the_most_images_fit(world: World) -> None:
    limits = RunLimits(wall_s=20.0, kept_output_chars=60_000, images=40)
    saves = "for n in range(40): image.save(chr(0x20000) * 60 + f'{n}.png')"
    code = f"{saves}\nprint(chr(0x1F600) * 59_999)\nchr(0x1F600) * 60_000"
    (result,) = world.runs(code, limits=limits, capture=("files", "value"))
    assert (result.status, len(result.images), len(result.output)) == (Status.OK, 40, 60_000), result.error
    assert result.value


def test_long_output_keeps_head_and_tail(world: World) -> None:
    (result,) = world.runs("print('start'); print('é' * 40_000); print('\\x1b[2J end')")
    assert result.output.startswith("start\n") and result.output.endswith("\ufffd[2J end\n")
    assert len(result.output) < 8192 + 100 and any("left out" in n for n in result.notes)


SHORTENED = [
    (b"a" * 8, "a" * 8),
    (b"abcd" + b"." * 92 + b"wxyz", "abcd\n… [92 bytes left out] …\nwxyz"),
    ("ä".encode() * 8, "ä" * 8),
    (b"\0" * 8, "\ufffd" * 8),
    (b"\0" * 9, "\ufffd" * 4 + "\n… [1 bytes left out] …\n" + "\ufffd" * 4),
    (b"\xff" * 10, "\ufffd" * 4 + "\n… [2 bytes left out] …\n" + "\ufffd" * 4),
    ("𝄞".encode() * 9, "𝄞" * 4 + "\n… [4 bytes left out] …\n" + "𝄞" * 4),
    ("a𝄞".encode() * 50, "a𝄞a𝄞\n… [230 bytes left out] …\na𝄞a𝄞"),
]


def test_what_is_left_out_of_the_output_is_said(subtests: pytest.Subtests) -> None:
    for printed, shown in SHORTENED:
        with subtests.test(str(printed)), tempfile.TemporaryFile() as file:
            file.write(printed)
            file.flush()
            assert proc.shortened(file.fileno(), 8)[0] == shown
            assert bool(proc.shortened(file.fileno(), 8)[1]) == ("left out" in shown)


def test_a_closed_episode_answers_lost(world: World) -> None:
    async def go() -> Status:
        episode = await world.pool.open(setup())
        await episode.close()
        await episode.close()
        return (await episode.run("1")).status

    assert world.do(go()) is Status.LOST


def test_the_default_is_the_strongest_tier_with_a_proved_report(strongest: World) -> None:
    report = strongest.pool.report
    assert report["tier"] in ("full", "landlock") and report["probed"]
    assert strongest.runs("print(1)")[0].output == "1\n"


def test_below_landlock_it_asks_for_an_outer_boundary() -> None:
    with pytest.raises(ConfigError, match="outer_boundary"):
        PoolConfig(minimum_tier="none")
    with pytest.raises(ConfigError, match="one of"):
        PoolConfig(minimum_tier="docker")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="active"):
        PoolConfig(active=0)
