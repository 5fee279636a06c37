"""Import, filter and export of rows whose images are JPEG files, beside ``datasets.map`` on the same rows.

    python tests/bench/bench_import.py 10000 100000 1000000

Five rows share an image (JPEG, 160 x 120, about 6 kB). Each step is a process of its own; seconds are CPU seconds, and
memory is its peak. ``datasets.map`` does three amounts of work: new columns alone; also reading, hashing and checking
each image's header, as our import does; and decoding each image and writing it as PNG, as ``keep_images=png`` does.
Two steps of rl show what a start costs where many rows lie ready. Steps that write PNG are left out above 10 000 rows.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

PER_IMAGE = 5
DECODED_AT_MOST = 10_000
COLOURS = ("red", "blue", "green", "grey", "black")

MAP = """
import hashlib, io, sys
from pathlib import Path
import datasets
from PIL import Image
folder, work, out = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def columns(row):
    prompt = [{"role": "user", "content": "<image>" + row["question"]}]
    truth = {"style": "rule", "ground_truth": row["answer"]}
    images = [{"path": str(folder / row["image"])}]
    return {"data_source": "own", "prompt": prompt, "images": images, "reward_model": truth}
def read(row):
    found = columns(row)
    data = (folder / row["image"]).read_bytes()
    with Image.open(io.BytesIO(data)) as image:
        size = image.size
    return found | {"sha256": hashlib.sha256(data).hexdigest(), "width": size[0], "height": size[1]}
def decode(row):
    found, png = columns(row), io.BytesIO()
    Image.open(folder / row["image"]).convert("RGB").save(png, "PNG")
    return found | {"images": [{"bytes": png.getvalue()}]}
rows = datasets.load_dataset("json", data_files=str(folder / "train.jsonl"), split="train", cache_dir=out + "/cache")
rows.map(globals()[work], remove_columns=["image"]).to_parquet(out + "/rows.parquet")
"""


def write_rows(folder: Path, count: int) -> None:
    """Rows and their images. A twentieth of the images are other encodings of one before."""
    (folder / "img").mkdir(parents=True)
    with (folder / "train.jsonl").open("w") as file:
        for number in range(-(-count // PER_IMAGE)):
            again = number % 20 == 19
            grid = np.random.default_rng(number - 1 if again else number).integers(0, 256, (12, 16, 3), np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(grid).resize((160, 120)).save(buffer, "JPEG", quality=70 if again else 85)
            (folder / "img" / f"{number}.jpg").write_bytes(buffer.getvalue())
            for colour in COLOURS[: min(PER_IMAGE, count - number * PER_IMAGE)]:
                row = {"question": f"How many {colour} squares are there?", "answer": str(number % 9), "rule": "exact"}
                file.write(json.dumps(row | {"image": f"img/{number}.jpg"}) + "\n")


def measured(name: str, count: int, command: Sequence[str], log: Path) -> None:
    """Runs one step and prints its line."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name} failed:\n{log.read_text()[-3000:]}")
    cpu, wall = used.ru_utime + used.ru_stime, time.monotonic() - start
    numbers = f"{cpu:,.0f} | {wall:,.0f} | {count / cpu:,.0f} | {used.ru_maxrss / 1024:,.0f}"
    print(f"| {name} | {count:,} | {numbers} |", flush=True)


def measure(folder: Path, count: int) -> None:
    rows, home, log = folder / "rows", folder / "home", folder / "log"
    write_rows(rows, count)
    own = f"_target_: vtcli.data.importers.rows.generate, path: '{rows}/{{split}}.jsonl', name: own"
    task = f"+data.tasks.own={{train: null, forms: [answer], generate: {{{own}}}}}"
    vtcli = [sys.executable, "-m", "vtcli"]
    said = ["scale=tiny", "tracker=none", f"home={home}"]
    make = [*vtcli, "synth", *said, "~data.tasks", task, "synth.forms=[answer]", "synth.workers=1"]
    decode = count <= DECODED_AT_MOST
    measured("import, reference", count, [*make, "name=reference", "synth.keep_images=reference"], log)
    given = [*vtcli, "filter", *said, "data=reference:v1"]
    measured("filter, rows", count, [*given, "name=clean", "filter=rows"], log)
    measured("filter, near, first time", count, [*given, "name=near", "filter=near"], log)
    measured("filter, near, again", count, [*given, "name=again", "filter=near", "+filter.rules.near.max_bits=8"], log)
    few = ["rl.steps_per_phase=1", "rl.prompts_per_step=4", "rl.group_size=2", "rl.allow_no_update=true"]
    measured("rl, two steps", count, [*vtcli, "rl", "+recipe=grpo_accuracy", *said, "data=reference:v1", *few], log)
    export = [*vtcli, "artifacts", "export", "near:v1", str(folder / "hf"), "--to", "hf", "--home", str(home)]
    measured("export, hf", count, export, log)
    for keep in ("original", *(["png"] if decode else [])):
        measured(f"import, {keep}", count, [*make, f"name={keep}", f"synth.keep_images={keep}"], log)
    for work in ("columns", "read", *(["decode"] if decode else [])):
        out = folder / work
        measured(f"`datasets.map`, {work}", count, [sys.executable, "-c", MAP, str(rows), work, str(out)], log)


def main() -> None:
    print("| step | rows | CPU s | wall s | rows/CPU s | peak MiB |\n|---|--:|--:|--:|--:|--:|", flush=True)
    for count in map(int, sys.argv[1:] or ("10000", "100000")):
        with tempfile.TemporaryDirectory() as name:
            measure(Path(name), count)


if __name__ == "__main__":
    main()
