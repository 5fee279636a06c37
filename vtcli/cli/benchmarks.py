"""``vtcli benchmarks``: which benchmarks there are, what one consists of, a local copy, and whether it is complete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vtcli.cli.artifacts import Home
from vtcli.foreign import print_line
from vtcli.runs.closing import say_next

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vtcli.benchmarks.benchmark import Benchmark
    from vtcli.benchmarks.results import RunSetting
    from vtcli.data.importers.hub_files import HubListing, HubSet
    from vtcli.scoring.stored import TrajectorySource

app = typer.Typer(help="List and fetch benchmarks, check local copies, score answers.", no_args_is_help=True)

Own = Annotated[Path | None, typer.Option("--config-dir", help="A folder of your own, with benchmark/NAME.yaml.")]

INCOMPLETE = 1
SHOWN_PROBLEMS = 10


def _values(own: Path | None, only: str = "") -> Mapping[str, Any]:
    """Returns the benchmarks of every file, or only of the file ``only``."""
    from vtcli.config import compose

    names = compose.options("benchmark", compose.own_folder(own))
    # One file composes faster than all of them.
    names = [only] if only in names else names
    job = compose.load("eval", [*_flags(own), f"benchmark=[{','.join(names)}]", "eval.model=none"])
    return job.values["benchmark"]


def _benchmarks(own: Path | None, only: str = "") -> dict[str, Benchmark]:
    from vtcli.benchmarks.benchmark import Benchmark
    from vtcli.config.binding import convert

    return convert(_values(own, only), dict[str, Benchmark], "benchmark")


@app.command("ls", short_help="List every benchmark.", epilog="Example: vtcli benchmarks ls")
def ls(own: Own = None) -> None:
    """List every benchmark: name, rows, scorers, how many rows of papers it is compared with, title."""
    from vtcli.report.printing import print_list

    lines = []
    for name, one in sorted(_benchmarks(own).items()):
        rows = "?" if one.rows is None else str(one.rows)
        scores = " ".join([*one.scores, *(["judged"] if one.judged else [])])
        lines.append((name, rows, scores, str(len(one.published)), one.title))
    print_list(("benchmark", "rows", "scored by", "printed rows", "title"), lines)
    say_next("benchmarks", "show", "vstar")


@app.command("show", epilog="Example: vtcli benchmarks show hrbench_4k")
def show(name: str, own: Own = None) -> None:
    """Print the benchmark NAME as its file has it, with every default."""
    import yaml

    from vtcli.benchmarks.benchmark import named

    values = _values(own)
    print_line(
        yaml.safe_dump({name: values[named(values, [name])[0]]}, sort_keys=False, allow_unicode=True).rstrip(),
        sys.stdout,
    )
    say_next("benchmarks", "get", name, "--into", "benchmarks", *_flags(own))


@app.command(
    "check",
    short_help="Check local copies: files, version, rows, images.",
    epilog="Example: vtcli benchmarks check /data/benchmarks vstar textvqa",
)
def check(folder: Path, name: Annotated[list[str] | None, typer.Argument()] = None, own: Own = None) -> None:
    """Check the local copies below FOLDER, or those of NAME…: files, version, rows, ids, answers, images.

    Exit code 1 if a copy that is there, or was named, is not complete.
    """
    from vtcli.benchmarks.benchmark import named
    from vtcli.errors import InputError

    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; expected one with local copies of benchmarks, such as VStarBench.tsv."
        )
    known = _benchmarks(own)
    states = {one: _check_copy(folder, one, known[one], asked=bool(name)) for one in named(known, name or [])}
    wrong = [one for one, complete in states.items() if complete is False or (complete is None and name)]
    if wrong:
        say_next("benchmarks", "get", *wrong, "--into", folder, *_flags(own))
    elif ready := [one for one, complete in states.items() if complete]:
        _say_evaluate(ready, folder, own)
    else:
        say_next("benchmarks", "ls")
    raise typer.Exit(INCOMPLETE if wrong else 0)


def _flags(own: Path | None) -> list[str]:
    return ["--config-dir", str(own)] if own else []


def _say_evaluate(names: Sequence[str], folder: Path, own: Path | None) -> None:
    say_next(
        "eval", "model=policy@latest", f"benchmark=[{','.join(names)}]", f"eval.benchmarks_in={folder}", *_flags(own)
    )


def _check_copy(folder: Path, name: str, benchmark: Benchmark, *, asked: bool = True) -> bool | None:
    """Checks a local copy and prints the verdict; returns None without a copy."""
    from vtcli.benchmarks.files import fetching
    from vtcli.benchmarks.samples import check as checked

    found = checked(folder, name, benchmark)
    if not found.files:
        print_line(f"{name:<22} no copy here.{fetching(folder, name, benchmark) if asked else ''}", sys.stdout)
        return None
    expected = "" if found.expected is None else f" of {found.expected}"
    verdict = "complete" if found.complete else "NOT complete"
    print_line(
        f"{name:<22} {verdict}: {found.rows}{expected} rows, version {found.version} ({found.files[0].name})",
        sys.stdout,
    )
    if found.sha256:
        print_line(f"{'':<22}   no digest of this form is known; the copy's is sha256: {found.sha256}", sys.stdout)
    for problem in found.problems[:SHOWN_PROBLEMS]:
        print_line(f"{'':<22}   {problem}", sys.stdout)
    if (more := len(found.problems) - SHOWN_PROBLEMS) > 0:
        print_line(f"{'':<22}   and {more} more", sys.stdout)
    return found.complete


@app.command(
    "get",
    short_help="Fetch benchmarks and public sets.",
    epilog="Example: vtcli benchmarks get vstar --into /data/benchmarks",
)
def get(
    name: list[str],
    into: Annotated[Path, typer.Option(envvar="VTCLI_BENCHMARKS", help="The folder of local copies.")] = Path(
        "benchmarks"
    ),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the download.")] = False,
    newest: Annotated[bool, typer.Option("--newest", help="Replace a copy by another revision.")] = False,
    own: Own = None,
) -> None:
    """Fetch NAME… from the hub or a mirror (HF_ENDPOINT): benchmarks, and the public sets of data=NAME.

    Licence, size and revision are shown first. A download that stopped goes on. Every file is compared with its digest.
    hub.lock in the copy has revision and digests: later commands, on other machines too, fetch those.
    """
    from vtcli.benchmarks.files import places
    from vtcli.config import compose
    from vtcli.data.importers import hub_files
    from vtcli.errors import InputError

    data, wrong = compose.options("data", compose.own_folder(own)), False
    for one in name:
        known = {} if one in _fetched(own) else _benchmarks(own, one)
        if one in known:
            benchmark = known[one]
            if not benchmark.hub:
                raise InputError(
                    f"{one} is on no hub in a form that vtcli reads: {benchmark.source}. Fetch it by hand."
                )
            forms = [(form.files, form.video is None) for form in benchmark.formats]
            for hub, place in places(into, one, benchmark):
                _fetch(one, hub, forms, benchmark.licence, place, yes=yes, newest=newest)
            wrong |= not _check_copy(into, one, benchmark)
            _say_evaluate([one], into, own)
            continue
        sets = _sets(one, own) if one in data else {}
        if not sets:
            raise InputError(
                f"{one} is not a benchmark (`vtcli benchmarks ls`), nor a data=NAME with a set on the hub; such are "
                f"{', '.join(_fetched(own))}."
            )
        for task, found in sets.items():
            place = into / one / task if len(sets) > 1 else into / one
            listing = _fetch(one, found.name, [(found.files, True)], found.licence, place, yes=yes, newest=newest)
            rows = hub_files.rows_of(listing, found, place)
            say_next("synth", f"data={one}", f"data.tasks.{task}.generate.path={rows}", *_flags(own))
    raise typer.Exit(INCOMPLETE if wrong else 0)


def _sets(data: str, own: Path | None) -> dict[str, HubSet]:
    """Returns the sets of the hub in a file of conf/data, by task."""
    from vtcli.config import compose
    from vtcli.config.binding import convert
    from vtcli.data.importers.hub_files import HubSet

    values = compose.load("synth", [*_flags(own), f"data={data}"]).values["data"]
    return convert(values.get("hub") or {}, dict[str, HubSet], "data.hub")


def _fetched(own: Path | None) -> list[str]:
    """Returns the files of conf/data with a set on the hub."""
    from vtcli.config import compose

    folders = [compose.folder(), *([found] if (found := compose.own_folder(own)) else [])]
    files = [path for folder in folders for path in (folder / "data").glob("*.yaml")]
    return sorted(path.stem for path in files if "\nhub:" in path.read_text())


def _fetch(
    name: str, hub: str, forms: Sequence[tuple[str, bool]], licence: str, place: Path, *, yes: bool, newest: bool
) -> HubListing:
    """Lists the files, asks, and fetches them. ``newest``: whatever revision the local copy has. Raises ``InputError``
    for a no."""
    from vtcli.data.importers import hub_files
    from vtcli.errors import InputError

    listing = hub_files.survey(hub if newest else hub_files.locked_name(hub, place), forms, place)
    if not newest:
        hub_files.require_locked(listing, place)
    print_line(
        f"{name}: {listing.name}, {len(listing.files)} files, {listing.size / 1e6:.1f} MB, to {place}\n"
        f"licence: {licence}; on its card: {listing.licence}\n"
        f"revision {listing.commit}, {'pinned' if listing.pinned else 'the newest: none is pinned'}"
    )
    if not (yes or (sys.stdin.isatty() and typer.confirm("Fetch it?", err=True))):
        raise InputError(f"{name} was not fetched. --yes fetches it without asking.")
    hub_files.fetch(listing, place)
    if not listing.pinned:
        print_line(f"to pin it, write {listing.name}@{listing.commit} under hub: in its file of conf/")
    return listing


@app.command(
    "score",
    short_help="Score stored answers by today's rules.",
    epilog="Example: vtcli benchmarks score report@latest vstar --out figures.json",
)
def score(
    trajectories: str,
    name: Annotated[list[str] | None, typer.Argument()] = None,
    own: Own = None,
    home: Home = Path("artifacts"),
    out: Annotated[Path | None, typer.Option(help="A file for all figures, as JSON.")] = None,
) -> None:
    """Score the stored answers of a report, or of a JSONL file, by the rules of NAME… as they are now.

    No model and no judge is asked, and no artifact is changed. Without NAME: every benchmark that was asked.
    """
    import json

    from vtcli.benchmarks import results
    from vtcli.benchmarks.benchmark import named
    from vtcli.errors import InputError
    from vtcli.report import printing, published
    from vtcli.schema import Scored, Signals, Trajectory
    from vtcli.scoring import stored
    from vtcli.store import disk, records
    from vtcli.store.artifacts import ArtifactStore

    store = ArtifactStore(home)
    source = stored.trajectories(store, stored.find(store, trajectories))
    found = [
        record if isinstance(record, Scored) else Scored(record, Signals({}), None)
        for path in source.files
        for record in records.read(path, Scored, Trajectory)
    ]
    tasks, known = {s.trajectory.sample.task for s in found}, _benchmarks(own)
    asked = named(known, name) if name else sorted(tasks & known.keys())
    if missing := [one for one in asked if one not in tasks] or (not asked and ["any benchmark"]):
        raise InputError(
            f"{trajectories} has no answers to {', '.join(missing)}; its tasks are "
            f"{', '.join(sorted(tasks)) or 'none'}. Ask them first: vtcli eval benchmark=[NAME]."
        )
    # Only for the table's header: no figure depends on it.
    setting = _setting(source, trajectories)
    measured = {one: r for one in asked if (r := results.result(one, known[one], found, setting, seed=0))}
    table = published.table(measured, known)
    printing.print_all([table] if table else [])
    if out is not None:
        plain = {one: results.plain(r, known[one]) for one, r in measured.items()}
        disk.write_atomic(out, json.dumps(plain, indent=1).encode())
    say_next("view", trajectories)


def _setting(source: TrajectorySource, label: str) -> RunSetting:
    """Returns model, judge and sampling of a report from its configuration."""
    from vtcli.benchmarks.results import ORACLE, RunSetting
    from vtcli.judging.separate import answers_by

    config = source.artifact.manifest.config if source.artifact else {}
    settings = config.get("eval") or {}
    if not settings:
        return RunSetting(label, ORACLE, "not stated")
    model = settings.get("label") or settings.get("model") or label
    sampling = (settings.get("agent") or {}).get(
        "sampling"
    ) or settings  # reports of 0.1.0's first months have no agent
    temperature = sampling.get("temperature")
    return RunSetting(str(model), answers_by(config) or ORACLE, f"T {temperature}, where no benchmark has its own")
