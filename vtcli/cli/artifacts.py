"""``vtcli artifacts``: what stages have made, from what, and whether it is still whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtcli.errors import InputError
from vtcli.foreign import print_line
from vtcli.runs.closing import say_next

if TYPE_CHECKING:
    from vtcli.store.artifacts import Artifact, ArtifactStore

app = typer.Typer(help="List, show and verify what stages have made.", no_args_is_help=True)

Home = Annotated[Path, typer.Option(envvar="VTCLI_HOME", help="Where artifacts live.")]


def store_in(home: Path) -> ArtifactStore:
    from vtcli.store.artifacts import ArtifactStore

    return ArtifactStore(home)


@app.command("ls", short_help="List every artifact.", epilog="Example: vtcli artifacts ls")
def ls(home: Home = Path("artifacts")) -> None:
    """List every artifact: reference, kind, size, seed, recipe, when it was made, where it is."""
    from vtcli.report.printing import print_list

    store = store_in(home)
    found = store.ls()
    lines = []
    for artifact in found:
        made, size = artifact.manifest, f"{artifact.size / 1e6:.1f} MB"
        seed = "-" if made.seed is None else str(made.seed)
        recipe, folder = artifact.recipe or "-", str(artifact.path)
        lines.append((artifact.ref, artifact.kind, size, seed, recipe, made.created, folder))
    print_list(("artifact", "kind", "size", "seed", "recipe", "made", "folder"), lines)
    for line in store.damaged():
        print_line(f"vtcli: damaged: {line}")
    if found:
        say_next("artifacts", "show", max(found, key=lambda artifact: artifact.manifest.created).ref, *_at(home))
    else:
        _say_if_none(found, home)


@app.command("show", short_help="Print the manifest of REF.", epilog="Example: vtcli artifacts show policy@latest")
def show(
    ref: str,
    home: Home = Path("artifacts"),
    everything: Annotated[bool, typer.Option("--all", help="Every file, however many there are.")] = False,
) -> None:
    """Print the manifest of REF (NAME:vN, NAME@latest or a path); long lists of files in short."""
    import json

    from vtcli.store.manifest import in_short

    values = store_in(home).show(ref)
    print_line(json.dumps(values if everything else in_short(values), indent=2), sys.stdout)
    say_next("artifacts", "lineage", ref, *_at(home))


@app.command("add", epilog="Example: vtcli artifacts add /other/artifacts/policy/v3")
def add(folder: Path, home: Home = Path("artifacts")) -> None:
    """Copy the artifact in FOLDER, of another home, into this one."""
    artifact = store_in(home).add(folder)
    print_line(f"{artifact.ref}\t{artifact.path}", sys.stdout)
    _say_reader(artifact)


@app.command("rm", epilog="Example: vtcli artifacts rm policy:v1 --dry-run")
def rm(
    refs: list[str],
    home: Home = Path("artifacts"),
    with_dependants: Annotated[bool, typer.Option("--with-dependants", help="Also what was made from them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed.")] = False,
) -> None:
    """Remove artifacts. An artifact with descendants stays, unless they are removed with it."""
    from vtcli.store.removal import remove

    for artifact in remove(store_in(home), refs, with_dependants, dry_run):
        print_line(
            f"{'would remove' if dry_run else 'removed'} {artifact.ref}  {artifact.size / 1e6:.1f} MB", sys.stdout
        )
    more = ["--with-dependants"] if with_dependants else []
    say_next("artifacts", *(["rm", *refs, *more] if dry_run else ["ls"]), *_at(home))


@app.command("gc", short_help="Remove what killed processes left.", epilog="Example: vtcli artifacts gc --dry-run")
def gc(
    home: Home = Path("artifacts"),
    work: Annotated[bool, typer.Option("--work", help="Also what interrupted runs would go on from.")] = False,
    unused: Annotated[
        float | None,
        typer.Option("--unused", min=0, metavar="DAYS", help="Also rollouts and merged adapters unused so long."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed.")] = False,
) -> None:
    """Remove what killed processes left behind: drafts of artifacts, locks, and with --work their unfinished work."""
    from vtcli.store.removal import DAY_S, caches, clear, leftovers

    store = store_in(home)
    # Also the work that stays: the last lines say what --work and --unused would free.
    everything = leftovers(store, work=True)
    unfinished = [leftover for leftover in everything if leftover.kind == "work" and not work]
    found = [leftover for leftover in everything if leftover not in unfinished]
    found += [] if unused is None else caches(store.root, unused * DAY_S)
    kept = [leftover for leftover in caches(store.root) if leftover not in found]
    if not dry_run:
        clear(found)
    for leftover in found:
        print_line(
            f"{'would remove' if dry_run else 'removed'} {leftover.path}  {leftover.size / 1e6:.1f} MB", sys.stdout
        )
    if not found:
        print_line(f"vtcli: nothing to remove in {home}")
    if unfinished:
        size = sum(leftover.size for leftover in unfinished) / 1e6
        print_line(
            f"vtcli: unfinished work, from which interrupted and failed commands would go on, takes {size:.1f} MB "
            f"(folders: {len(unfinished)}); --work removes it as well"
        )
    if kept:
        print_line(
            f"vtcli: rollouts and merged adapters take {sum(each.size for each in kept) / 1e6:.1f} MB (folders: "
            f"{len(kept)}) and save making them again; --unused DAYS removes those that no run has used for so long"
        )
    words = ["gc", *(["--work"] if work else []), *([] if unused is None else ["--unused", f"{unused:g}"])]
    say_next("artifacts", *(words if dry_run and found else ["ls"]), *_at(home))


@app.command("lineage", epilog="Example: vtcli artifacts lineage report@latest")
def lineage(ref: str, home: Home = Path("artifacts")) -> None:
    """Print what REF was made from, down to the generator's seed."""
    print_line(store_in(home).lineage(ref).text(), sys.stdout)
    say_next("artifacts", "verify", ref, *_at(home))


@app.command(
    "verify",
    short_help="Compare every file with the manifests.",
    epilog="Example: vtcli artifacts verify policy@latest",
)
def verify(
    refs: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None, home: Home = Path("artifacts")
) -> None:
    """Read every file of the artifacts and of their ancestors again and compare them with the manifests."""
    store = store_in(home)
    # An artifact whose manifest cannot be read has no reference, so only a look at all of them finds it.
    problems = store.damaged() if not refs else []
    if not refs:
        refs = [a.ref for a in store.ls()]
        _say_if_none(refs or problems, home)
    for ref in refs:
        found = store.verify(ref)
        print_line(f"{'wrong' if found else 'ok':<6} {ref}", sys.stdout)
        problems += [f"{ref}: {line}" for line in found]
    if problems:
        raise InputError("\n".join([*problems, "Remove the damaged artifact and repeat the command of its stage."]))
    if refs:
        _say_reader(store.resolve(refs[0], verify=False))


@app.command(
    "view",
    short_help="Write a page with the first rows of a dataset.",
    epilog="Example: vtcli artifacts view data@latest --rows 20 --open",
)
def view(
    ref: str,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each file.")] = 20,
    file: Annotated[str | None, typer.Option(help="Only this one, answer-train say.")] = None,
    printed: Annotated[bool, typer.Option("--print", help="Print the rows, and write no page.")] = False,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser, too.")] = False,
    home: Home = Path("artifacts"),
) -> None:
    """Write a page with the contact sheet and the first rows of the dataset or demonstrations REF, and print its path.

    The page is one file that needs nothing else: images with their boxes, questions, answers, turns.
    """
    import webbrowser

    from vtcli.data import preview
    from vtcli.store import disk

    store = store_in(home)
    artifact = store.resolve(ref)
    # Before the page is written, because a file that is missing or damaged should leave no half page.
    cards = [preview.of_stored(row) for row in preview.first_rows(artifact, rows, file)]
    if printed:
        print_line("\n\n".join(preview.text(card) for card in cards), sys.stdout)
        say_next("artifacts", "view", ref, "--open", *_at(home))
        return
    sheet = artifact.path / "contact_sheet.png"
    made = artifact.manifest
    about = f"{artifact.kind} by {made.stage}, made {made.created}: the first {len(cards)} rows"
    page = preview.page(artifact.ref, cards, about, sheet.read_bytes() if sheet.is_file() else None)
    path = store.root / f"view-{artifact.name}-v{artifact.version}.html"
    disk.write_atomic(path, page.encode())
    print_line(str(path), sys.stdout)
    if browser:
        webbrowser.open(path.resolve().as_uri())
    if artifact.recipe:
        _say_reader(artifact)
    else:
        say_next("filter", f"data={artifact.ref}", "filter=near", *(f"home={path}" for path in _at(home)[1:]))


@app.command(
    "export",
    short_help="Write a model or data for other programs.",
    epilog="Example: vtcli artifacts export policy@latest published --to hf",
)
def export(
    ref: str,
    folder: Path,
    to: Annotated[str, typer.Option("--to", help="hf; of data also verl, trl, swift or sharegpt.")],
    licence: Annotated[str | None, typer.Option("--licence", help="Of this export, for its card.")] = None,
    push: Annotated[str | None, typer.Option("--push", help="OWNER/NAME on the hub, to upload FOLDER to.")] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: a new repository that all can see.")] = False,
    home: Home = Path("artifacts"),
) -> None:
    """Write REF into FOLDER with a card: a model as transformers reads it, data as another trainer does."""
    from vtcli.data.exporters import writing
    from vtcli.report import publishing

    store = store_in(home)
    # policy:v1/best is the folder ``best`` inside the artifact.
    artifact = store.resolve(ref if Path(ref).exists() else ref.partition("/")[0], verify=False)
    data = artifact.kind != "model"
    if data:
        for name, counts in writing.export(store, ref, to, folder, licence or "unknown").items():
            print_line(f"{name:<24} {sum(counts.values()):>9} rows  {', '.join(counts)}", sys.stdout)
    elif to == "gguf":
        raise InputError(
            f"--to gguf: llama.cpp converts. Export {ref} with --to hf, then give that folder to its "
            "convert_hf_to_gguf.py (the language model), and once more with --mmproj (the vision tower)."
        )
    elif to != "hf":
        raise InputError(f"--to {to}: {artifact.ref} is a model; expected hf.")
    else:
        for name in publishing.publish(store, ref, folder, licence):
            print_line(name, sys.stdout)
    if push:
        print_line(publishing.push(folder, push, "dataset" if data else "model", public=public), sys.stdout)
    say_next(folder / "README.md", program="cat")  # the card: how to load it


def _say_if_none(found: Sequence[object], home: Path) -> None:
    if not found:
        print_line(f"vtcli: no artifacts in {home}; VTCLI_HOME or --home names another folder")
        say_next("run", "quickstart")


def _say_reader(artifact: Artifact) -> None:
    from vtcli.runbook.reader import say_next_of

    say_next_of(artifact)


def _at(home: Path) -> list[str]:
    """Returns the option for a home that is not the usual one."""
    usual = Path(os.environ.get("VTCLI_HOME") or "artifacts")
    return [] if home == usual else ["--home", str(home)]
