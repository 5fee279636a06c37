"""The video reader, on videos made here whose frames carry their own number as ten black or white blocks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from sandbox_world import World

from vtcli.sandbox.types import Setup, Status
from vtcli.sandbox.video import decoding
from vtcli.sandbox.video import reader as video
from vtcli.sandbox.video.reader import VideoError, VideoReader, info

WIDTH, HEIGHT, FRAMES = 160, 96, 60


def picture(number: int) -> np.ndarray:
    """Red at the top left, blue at the bottom right, and ``number`` in blocks of 12 x 16 pixels along the top."""
    pixels = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
    pixels[32:64, :40], pixels[64:, 120:] = (220, 30, 30), (30, 30, 220)
    for bit in range(10):
        pixels[8:24, 8 + 14 * bit : 20 + 14 * bit] = 255 if number >> bit & 1 else 0
    return pixels


def number(frame: np.ndarray) -> int:
    return sum(int(frame[12:20, 10 + 14 * bit : 18 + 14 * bit].mean() > 128) << bit for bit in range(10))


def make(
    path: Path, codec: str = "libx264", frames: int = FRAMES, stamp: Callable[[int], int] | None = None, **how: Any
) -> Path:
    """``stamp``: frame -> pts in 1/25000 s. ``how``: options of the codec; gop, b_frames, pixel_format, rotation."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=how.get("options", {}))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, how.get("pixel_format", "yuv420p")
        stream.codec_context.gop_size = how.get("gop", 12)
        if "b_frames" in how:
            stream.codec_context.max_b_frames = how["b_frames"]
        if "rotation" in how:
            stream.set_display_rotation(*how["rotation"])
        if stamp:
            stream.codec_context.time_base = Fraction(1, 25000)
        for i in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(i), format="rgb24")
            if stamp:
                frame.pts, frame.time_base = stamp(i), Fraction(1, 25000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


KINDS: dict[str, dict[str, Any]] = {
    "h264.mp4": {},
    "open_gop.mp4": {"options": {"x264-params": "open-gop=1:keyint=12:bframes=3"}},
    "hevc_open_gop.mp4": {"codec": "libx265", "options": {"x265-params": "open-gop=1:log-level=0:keyint=12:bframes=4"}},
    "h264.mkv": {},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"cpu-used": "8", "deadline": "realtime"}},
    "h264.ts": {},
    "mpeg4.avi": {"codec": "mpeg4"},
    "xvid_b.avi": {"codec": "mpeg4", "b_frames": 2},
    "h264_b.avi": {},
    "mpeg1.mpg": {"codec": "mpeg1video", "b_frames": 2},
    "flash.flv": {"codec": "flv1"},
    "wmv.asf": {"codec": "wmv2"},
    "raw.h264": {},
    "motion.avi": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
    "rate.mp4": {"stamp": lambda i: i * 1000 + i % 7 * 110},
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("clip") / "clip.mp4")


def test_every_frame_is_found_from_every_other(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind, options in KINDS.items():
        with subtests.test(kind):
            reader = VideoReader(make(tmp_path / kind, **options))
            assert len(reader) == FRAMES
            order = random.Random(0).sample(range(FRAMES), 16)
            assert [number(reader[i]) for i in order] == order
            assert [number(f) for f in reader.get_batch(order)] == order
            assert [number(f) for f in reader] == list(range(FRAMES))
            start, end = reader.get_frame_timestamp(FRAMES - 1)
            assert 2.3 < start < end < 2.5
            assert reader.get_avg_fps() == pytest.approx(25, rel=0.03)


def test_decord_interface(clip: Path) -> None:
    reader = VideoReader(str(clip), ctx=("cpu", 0), num_threads=1)
    frame = reader[3]
    assert frame.shape == (HEIGHT, WIDTH, 3) and frame.dtype == np.uint8 and frame.flags.c_contiguous
    assert type(frame.asnumpy()) is np.ndarray
    assert type(frame.mean()) is np.float64 and type(frame + 1) is np.ndarray
    assert abs(frame.astype(int) - picture(3)).mean() < 6
    assert number(reader[-1]) == FRAMES - 1
    assert [number(f) for f in reader[0:10:3]] == [0, 3, 6, 9]
    assert [number(f) for f in reader[[5, 2, 5]]] == [5, 2, 5]
    assert [number(f) for f in reader.get_batch(np.linspace(0, FRAMES - 1, 3))] == [0, 29, 59]
    assert reader.get_batch([]).shape == (0, HEIGHT, WIDTH, 3)
    assert [number(reader.next()) for _ in range(2)] == [0, 1]
    reader.skip_frames(3)
    assert number(reader.next()) == 5
    reader.seek_accurate(40)
    assert number(reader.next()) == 40
    assert reader.get_key_indices()[0] == 0
    assert VideoReader(clip, width=80, height=48)[0].shape == (48, 80, 3)
    assert number(VideoReader(reader)[7]) == 7
    assert "160 x 96 pixels, 60 frames, 25 frames/s" in repr(reader)
    assert info(clip) == video.VideoInfo(WIDTH, HEIGHT, FRAMES, 25.0)


def test_decord_can_be_imported(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("decord", "decord.bridge"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, sys)  # so that monkeypatch takes away what comes now
        monkeypatch.delitem(sys.modules, name)
    video.install_decord()
    space: dict[str, Any] = {"path": str(clip)}
    exec("import decord\nfrom decord import VideoReader, cpu\nn = len(VideoReader(path, ctx=cpu(0)))", space)
    exec("import decord.bridge\ndecord.bridge.set_bridge('native')", space)
    assert space["n"] == FRAMES
    with pytest.raises(ValueError, match="numpy"):
        exec("decord.bridge.set_bridge('torch')", space)


def test_times_of_a_varying_rate(tmp_path: Path) -> None:
    stamps = np.cumsum([0, 1000, 3000, 500, 25000, 1000])
    reader = VideoReader(make(tmp_path / "v.mp4", frames=6, stamp=lambda i: int(stamps[i])))
    times = reader.get_frame_timestamp(range(6))
    np.testing.assert_allclose(times[:, 0], stamps / 25000, atol=1e-3)
    np.testing.assert_allclose(times[:-1, 1], times[1:, 0])
    assert reader.get_frame_timestamp(2).shape == (2,)


TURNS = [
    ((90,), lambda p: np.rot90(p, 1)),
    ((180,), lambda p: np.rot90(p, 2)),
    ((-90,), lambda p: np.rot90(p, -1)),
    ((0, True, False), lambda p: p[:, ::-1]),
    ((0, False, True), lambda p: p[::-1]),
]


def test_rotated_videos_come_upright(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for rotation, turn in TURNS:
        with subtests.test(str(rotation)):
            reader = VideoReader(make(tmp_path / "v.mp4", frames=3, rotation=rotation))
            expected = turn(picture(1)).astype(int)
            assert abs(reader[1].astype(int) - expected).mean() < 6
            assert reader.size == (expected.shape[1], expected.shape[0])


def test_a_seek_does_not_decode_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = decoding._decoded

    def counted(*where: Any) -> Any:
        for frame in decode(*where):
            decoded.append(frame.pts)
            yield frame

    monkeypatch.setattr(decoding, "_decoded", counted)
    reader = VideoReader(make(tmp_path / "v.mp4", frames=1000, gop=25, options={"preset": "ultrafast"}))
    assert len(reader) == 1000 and reader.get_avg_fps() == 25
    assert decoded == []
    assert [number(f) for f in reader.get_batch([990, 20, 500])] == [990, 20, 500]
    assert len(decoded) <= 3 * 25
    decoded.clear()
    assert [number(f) for f in reader.get_batch(range(100, 120))] == list(range(100, 120))
    assert len(decoded) <= 2 * 25


def test_several_threads_may_be_the_first_to_read(tmp_path: Path) -> None:
    path = make(tmp_path / "v.mp4", frames=1000, gop=25, options={"preset": "ultrafast"})
    asked = [7, 990, 20, 500, 333, 64, 801, 2]
    for _ in range(2):
        reader = VideoReader(path)
        with ThreadPoolExecutor(len(asked)) as threads:
            assert [number(frame) for frame in threads.map(reader.__getitem__, asked)] == asked
        assert len(reader) == 1000


def test_what_is_asked_wrongly_is_said(clip: Path) -> None:
    reader = VideoReader(clip)
    with pytest.raises(IndexError, match=r"no frames \[60\]: the video has 60, 0 to 59"):
        reader[60]
    with pytest.raises(IndexError, match=r"\[-61\]"):
        reader.get_batch([0, -61])
    with pytest.raises(IndexError):
        reader.get_frame_timestamp(60)
    with pytest.raises(TypeError):
        reader[1.5]  # pyright: ignore
    with pytest.raises(FileNotFoundError):
        VideoReader(clip.parent / "none.mp4")
    with pytest.raises(VideoError, match="regular file"):
        VideoReader(clip.parent)


def test_what_is_no_video_says_so_when_it_is_used(tmp_path: Path, clip: Path) -> None:
    sound = tmp_path / "sound.wav"
    with av.open(str(sound), "w") as container:
        container.add_stream("pcm_s16le", rate=8000)
        container.start_encoding()
    files = {
        "empty": b"",
        "no video": b"hello " * 500,
        "no video:": b"#EXTM3U\n#EXTINF:1,\n" + os.fsencode(clip) + b"\n",  # a playlist opens other files
        "cut off": clip.read_bytes()[: clip.stat().st_size // 2],  # its index was at the end
    }
    for said, content in files.items():
        path = tmp_path / "v.mp4"
        path.write_bytes(content)
        reader = VideoReader(path)
        for use in (len, lambda r: r[0], lambda r: r.get_avg_fps(), lambda r: r.get_frame_timestamp(0)):
            with pytest.raises(VideoError, match=said):
                use(reader)
        assert said in repr(reader)
    with pytest.raises(VideoError, match="no video"):
        len(VideoReader(sound))


def test_a_video_without_frames(tmp_path: Path) -> None:
    path = tmp_path / "v.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        container.start_encoding()
    with pytest.raises(VideoError, match=r"no frames|ends before its first frame"):
        len(VideoReader(path))


def test_a_truncated_video_gives_the_frames_it_has(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in ["h264.mkv", "h264.ts", "mpeg4.avi", "vp9.webm"]:
        with subtests.test(kind):
            whole = make(tmp_path / kind, **KINDS[kind])
            half = tmp_path / f"half_{kind}"
            half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
            reader = VideoReader(half)
            assert 2 < len(reader) < FRAMES
            seen = 0
            for i in range(len(reader)):
                try:
                    assert number(reader[i]) == i
                    seen += 1
                except VideoError:
                    continue
            assert seen > 0.8 * len(reader) - 1


def test_a_frame_that_is_missing_is_an_error_and_its_neighbours_are_not(tmp_path: Path) -> None:
    path = make(tmp_path / "v.mp4", options={"x264-params": "bframes=0:scenecut=0:keyint=12"})
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    content = bytearray(path.read_bytes())
    at, size = packets[24]  # a key frame: nothing is left of it
    content[at : at + size] = bytes(size)
    path.write_bytes(content)
    reader = VideoReader(path)
    with pytest.raises(VideoError, match="frame 24 of 60 cannot be decoded"):
        reader[24]
    assert number(reader[23]) == 23 and number(reader[36]) == 36
    with pytest.raises(VideoError, match="frame 24"):
        reader.get_batch([23, 24, 36])
    assert [number(f) for f in reader.get_batch([23, 36, 59])] == [23, 36, 59]


def test_a_damaged_table_of_key_frames_costs_no_frame(tmp_path: Path) -> None:
    """FFmpeg refuses to seek by it, with "Operation not permitted"; the frames are read from the start."""
    content = bytearray(make(tmp_path / "v.avi", codec="mpeg4").read_bytes())
    entries = content.rfind(b"idx1") + 8
    for key in (0, 12, 24):
        content[entries + 16 * key + 4] ^= 0xFF  # the flag "a key frame"
    (tmp_path / "damaged.avi").write_bytes(content)
    reader = VideoReader(str(tmp_path / "damaged.avi"))
    assert [number(reader[i]) for i in range(len(reader))] == list(range(FRAMES))


def test_damaged_bytes_never_crash_the_process(tmp_path: Path, clip: Path) -> None:
    """Random damage, read in a process that may die; only errors that can be read may come out."""
    code = textwrap.dedent("""
        import random, sys, warnings
        from vtcli.sandbox.video.reader import VideoError, VideoReader
        warnings.simplefilter("ignore")
        out, *sources = sys.argv[1:]
        for source in sources:
            content = open(source, "rb").read()
            for seed in range(10):
                dice = random.Random(seed)
                damaged = bytearray(content)
                for _ in range(dice.choice([1, 10, 100, 1000])):
                    damaged[dice.randrange(len(damaged))] = dice.randrange(256)
                with open(out, "wb") as file:
                    file.write(damaged)
                try:
                    reader = VideoReader(out)
                    for i in range(0, min(len(reader), 300), 9):
                        try:
                            reader[i]
                        except VideoError:
                            pass
                except VideoError:
                    pass
            print("lived", source, flush=True)
    """)
    sources = [str(clip), str(make(tmp_path / "v.mkv")), str(make(tmp_path / "v.avi", codec="mpeg4"))]
    command = [sys.executable, "-c", code, str(tmp_path / "damaged"), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [f"lived {source}" for source in sources], done.stderr[-2000:]


def test_an_open_descriptor_is_enough_and_what_was_opened_is_given_back(clip: Path) -> None:
    with clip.open("rb") as file:
        reader = VideoReader(file.fileno())
        file.seek(7)
        assert number(reader[11]) == 11
        assert file.tell() == 7
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(20):
        assert number(VideoReader(clip)[5]) == 5
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) <= before


def test_a_video_takes_no_address_space(clip: Path) -> None:
    reader = VideoReader(clip)
    assert number(reader[42]) == 42
    assert str(clip) not in Path("/proc/self/maps").read_text()


def test_a_fork_is_a_copy(clip: Path) -> None:
    """The child reads on from where the parent was and elsewhere; the parent's place is not moved."""
    for prepare in (lambda r: None, len, lambda r: r[10], lambda r: r[FRAMES - 1]):
        with clip.open("rb") as file:
            reader = VideoReader(file.fileno())
            prepare(reader)
            for _ in range(2):
                child = os.fork()
                if child == 0:
                    try:
                        right = [number(reader[i]) for i in (11, 40, 3, 12)] == [11, 40, 3, 12]
                    finally:
                        os._exit(0 if right else 1)
                assert os.waitpid(child, 0)[1] == 0
            assert [number(reader[i]) for i in (11, 12, 50, 0)] == [11, 12, 50, 0]


def test_no_thread_is_started(clip: Path) -> None:
    code = "import os, sys; from vtcli.sandbox.video.reader import VideoReader; n = len(os.listdir('/proc/self/task'));"
    code += "r = VideoReader(sys.argv[1]); r.get_batch(range(30)); r[3]; print(len(os.listdir('/proc/self/task')) - n)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(clip)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"


def test_what_was_read_is_told(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = []
    monkeypatch.setattr(
        video, "on_frames", lambda reader, indices, frames: told.append((reader, indices, frames.shape))
    )
    reader = VideoReader(clip)
    assert reader.size == (WIDTH, HEIGHT)
    reader.get_batch([4, -1, 4])
    reader[2]
    assert told == [(reader, (4, 59, 4), (3, HEIGHT, WIDTH, 3)), (reader, (2,), (1, HEIGHT, WIDTH, 3))]


def test_in_the_sandbox_a_failed_run_moves_nothing(clip: Path, strongest: World) -> None:
    """The real pool: frames are decoded under confinement, and a reader goes on after a run that was undone."""

    async def episode() -> list[Any]:
        opened = await strongest.pool.open(Setup(videos={"video_clue_0": str(clip)}))
        sources = (
            "frame = video_clue_0[20]",
            "video_clue_0[50]; 1 / 0",
            "print(video_clue_0[21][12:20, 10:18].mean() > 128)",
        )
        try:
            return [await opened.run(source) for source in sources]
        finally:
            await opened.close()

    first, failed, after = strongest.do(episode())
    assert (first.status, failed.status, after.status) == (Status.NO_OUTPUT, Status.ERROR, Status.OK), (first, after)
    assert after.output == "True\n"
    assert [(o.name, o.library, o.arguments["indices"]) for o in after.operations] == [("frames", "video", [21])]
