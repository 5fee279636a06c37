"""Seconds, memory and bytes of a report of many trajectories.

    python tests/bench/bench_report.py artifacts/report/v1 10000 FOLDER

Repeats the stored trajectories of a report artifact under other ids, and writes FOLDER as ``vtcli eval`` does.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

from vtcli.report import build, folder
from vtcli.report.content import Evaluation, ReportData
from vtcli.schema import Scored
from vtcli.statistics.rows import make_row
from vtcli.store import records
from vtcli.store.images import ImageStore


def repeated(found: list[Scored], count: int) -> list[Scored]:
    """``count`` trajectories: those given, again and again, with ids of their own."""
    made: list[Scored] = []
    for number in range(count):
        scored, again = found[number % len(found)], number // len(found)
        t = scored.trajectory
        sample = replace(t.sample, id=f"{t.sample.id}-{again}")
        made.append(replace(scored, trajectory=replace(t, id=f"{t.id}-{again}", sample=sample)))
    return made


def main() -> None:
    source, count, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    images = ImageStore(source / "images")
    began = [time.perf_counter(), time.process_time()]

    def told(what: str) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        now = [time.perf_counter(), time.process_time()]
        print(f"{what:<24} {now[0] - began[0]:6.1f} s, {now[1] - began[1]:6.1f} CPU-s, peak {peak:.2f} GB", flush=True)
        began[:] = now

    found = repeated(list(records.read(source / "trajectories.jsonl", Scored)), count)
    told("rows read and repeated")
    (out / "trajectories.jsonl").unlink(missing_ok=True)
    folder.save_trajectories(out, found, images)
    told("trajectories stored")
    series = (Evaluation("model", "model:v1", tuple(make_row(s, None) for s in found)),)
    folder.save_series(out, series, 0)
    told("rows and metrics")
    build.build(out, ReportData(f"{count} trajectories", {}, [], "", series, shown=found), images)
    told("pages")
    pages = [path for path in out.rglob("*") if path.suffix in (".html", ".js")]
    print(f"report.html {(out / 'report.html').stat().st_size / 1e6:.2f} MB, ", end="")
    print(f"{len(pages)} pages {sum(path.stat().st_size for path in pages) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
