"""Files of a public set on the Hugging Face hub, or on a mirror of it (``HF_ENDPOINT``): what they are and how large,
and then a verified copy. A download that stopped goes on where it was."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from threading import Event, Lock
from typing import Any

from vtcli.errors import InputError
from vtcli.foreign import load_json, one_line, print_line
from vtcli.progress import RowBars
from vtcli.store import disk

WHOLE_TABLES = (".parquet", ".tsv", ".csv")
"""Endings of tables that hold their own images. Other rows name files beside them."""

ABOUT = ("README*", "LICENSE*", "LICENCE*")
"""Files that come along in any case."""


LOCK = "hub.lock"
"""File of a local copy: each repository's commit and its files' digests. A copy of it in an empty folder makes another
machine fetch the same."""

ELSEWHERE = "give another folder by --into"
AT_A_TIME, ATTEMPTS, TIMEOUT_S, MEGABYTE = 4, 5, 60.0, 10**6


@dataclass(frozen=True, slots=True)
class HubSet:
    """A set of the hub as a file of conf/data names it."""

    name: str  # OWNER/NAME, or OWNER/NAME@REVISION where a revision is pinned
    files: str  # the pattern of the rows' files
    licence: str = "not stated"
    sha256: str | None = None  # of the file, or of the sha256 of each of several in order; None: not known


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository as the hub lists it: by sha256 where it is stored as a large file, else by git's sha1."""

    path: str
    size: int
    sha256: str | None
    blob: str | None

    @property
    def digest(self) -> str:
        return str(self.sha256 or self.blob)


@dataclass(frozen=True, slots=True)
class HubListing:
    """The chosen files of one repository at one commit."""

    name: str
    commit: str
    pinned: bool
    licence: str  # as the repository's card states it
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def matches(path: str, pattern: str, repository: str = "") -> bool:
    """True where a repository's path is what a local copy's pattern means: at the top, in ``data``, or in a folder of
    the repository's own name.

    >>> matches("data/test-0.parquet", "test-*.parquet"), matches("old/test-0.parquet", "test-*.parquet")
    (True, False)
    """
    found, wanted = PurePosixPath(path).parts, PurePosixPath(pattern).parts
    places = ((found, wanted), (found, ("data", *wanted)), ((repository, *found), wanted))
    return any(len(a) == len(b) and all(map(fnmatchcase, a, b)) for a, b in places)


def survey(name: str, forms: Sequence[tuple[str, bool]], place: Path) -> HubListing:
    """Asks the hub for a repository's files and chooses those of the first form that it has.

    Args:
        name: OWNER/NAME, or OWNER/NAME@REVISION.
        forms: patterns of files, each with whether the rows name no file beside them. Otherwise all files are chosen.
        place: where they would go, for the command in messages.

    Raises:
        InputError: no way to the hub, no such repository or revision, none of the files, terms to be accepted.
    """
    from huggingface_hub import HfApi

    plain, _, revision = name.partition("@")
    api = HfApi()
    try:
        info: Any = api.repo_info(plain, repo_type="dataset", revision=revision or None, files_metadata=True)
    except Exception as error:  # the library raises its own kinds, and those of HTTP
        raise _problem(error, name, place) from error
    files = [
        HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None, each.blob_id)
        for each in info.siblings or ()
        if each.rfilename != ".gitattributes"
    ]
    _require_inside(plain, [each.path for each in files])
    repository = plain.rpartition("/")[2]
    for pattern, alone in forms:
        rows = [file for file in files if matches(file.path, pattern, repository)]
        if rows and alone and all(file.path.endswith(WHOLE_TABLES) for file in rows):
            about = [file for file in files if any(fnmatchcase(file.path, each) for each in ABOUT)]
            files = [*rows, *(file for file in about if file not in rows)]
        if rows:
            card = info.card_data.to_dict() if info.card_data else {}
            licence = str(card.get("license_name") or card.get("license") or "not stated")
            return HubListing(plain, info.sha, bool(revision), licence, tuple(files))
    there = ", ".join(file.path for file in files[:8]) or "nothing"
    raise InputError(
        f"{plain} has none of {', '.join(pattern for pattern, _ in forms)}; it has {there}"
        f"{' and more' if len(files) > 8 else ''}. Its files were renamed: fetch it by hand, and name them in a "
        "configuration of your own (--config-dir)."
    )


def _require_inside(name: object, paths: Iterable[str]) -> None:
    """Raises ``InputError`` for a path that is not in the folder of the copy."""
    if outside := [path for path in paths if ".." in PurePosixPath(path).parts or path.startswith("/")]:
        raise InputError(f"{name} lists {outside[0][:200]!r}, which leads out of its folder. Do not fetch it.")


def locked_name(name: str, place: Path) -> str:
    """Returns the name with the commit that the local copy's ``hub.lock`` has, if the name pins no revision."""
    commit, _ = _locks(place).get(name, ("", {}))
    return f"{name}@{commit}" if commit else name


def require_locked(listing: HubListing, place: Path) -> None:
    """Compares a listing with the local copy's ``hub.lock``.

    Raises:
        InputError: another commit, or the same with other digests.
    """
    commit, digests = _locks(place).get(listing.name, (listing.commit, {}))
    if commit != listing.commit:
        raise InputError(
            f"{place / LOCK} has {listing.name} at revision {commit}, and {listing.commit} was asked for. Give another "
            "folder by --into, or --newest to replace the copy."
        )
    if changed := [each.path for each in listing.files if digests.get(each.path, each.digest) != each.digest]:
        raise InputError(
            f"{listing.name} lists {changed[0]} at revision {commit} with another digest than {place / LOCK} has. A "
            "revision does not change: do not trust this mirror (HF_ENDPOINT)."
        )


def _locks(place: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Commit and digests of each repository that the local copy is from."""
    path = place / LOCK
    if not path.is_file():
        return {}
    try:
        found = load_json(path.read_bytes())
        locks = {str(name): (str(each["commit"]), dict[str, str](each["files"])) for name, each in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be read ({error!r}). Remove it, or copy it again.") from error
    for _, files in locks.values():
        _require_inside(path, files)
    return locks


def _write_lock(listing: HubListing, place: Path) -> None:
    locks = _locks(place)
    commit, digests = locks.get(listing.name, ("", {}))
    kept = digests if commit == listing.commit else {}
    locks[listing.name] = listing.commit, kept | {each.path: each.digest for each in listing.files}
    plain = {name: {"commit": commit, "files": files} for name, (commit, files) in sorted(locks.items())}
    with disk.checked(place, elsewhere=ELSEWHERE):
        disk.write_atomic(place / LOCK, (json.dumps(plain, indent=1) + "\n").encode())


def fetch(listing: HubListing, place: Path) -> None:
    """Downloads the files into ``place`` and compares each with the hub's digest. ``hub.lock`` is written first: after
    a stop the next command goes on with this revision. Files that are there stay, unless the lock has them with
    another digest or of a revision that had more.

    Raises:
        InputError: no room, no way to the hub, a hub that refuses or stops, a file that is not what the hub lists.
    """
    commit, before = _locks(place).get(listing.name, ("", {}))
    now = {file.path: file.digest for file in listing.files}
    with disk.checked(place, elsewhere=ELSEWHERE):
        place.mkdir(parents=True, exist_ok=True)
        for path, digest in before.items():
            if now.get(path, digest if commit == listing.commit else None) != digest:
                (place / path).unlink(missing_ok=True)
        free = shutil.disk_usage(place).free
        missing = [file for file in listing.files if not (place / file.path).is_file()]
        needed = sum(file.size for file in missing)
        if needed > free:
            raise InputError(f"{place} has {free / 1e9:.1f} GB left; {needed / 1e9:.1f} GB are missing. Give --into.")
        _write_lock(listing, place)
        with RowBars() as bars, ThreadPoolExecutor(AT_A_TIME) as pool:
            bars.begin("MB", needed // MEGABYTE)
            guard, done, stopped = Lock(), [0], Event()

            def count(received: int) -> None:
                with guard:
                    before, done[0] = done[0] // MEGABYTE, done[0] + received
                    bars.advance("MB", done[0] // MEGABYTE - before)

            tasks = [pool.submit(_download, listing, file, place, count, stopped) for file in missing]
            try:
                for task in as_completed(tasks):
                    task.result()
            except BaseException as error:
                stopped.set()  # or Ctrl-C would wait for the files under way
                pool.shutdown(wait=True, cancel_futures=True)
                if isinstance(error, Exception) and not isinstance(error, InputError):
                    raise _problem(error, f"{listing.name}@{listing.commit}", place) from error
                raise
        for file in listing.files:
            _require_digest(place / file.path, file, listing.name)


def _download(listing: HubListing, file: HubFile, place: Path, count: Callable[[int], None], stopped: Event) -> None:
    """Fetches one file. What an earlier attempt left of it, also that of a killed process, is not fetched again.

    Raises:
        InputError: disk trouble, more bytes than the hub lists, or answers that keep ending early.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

    path = place / file.path
    part = path.with_name(f".{path.name[:100]}.{file.digest[:16]}.part")  # one for each content
    with disk.checked(part, elsewhere=ELSEWHERE):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    url = hf_hub_url(listing.name, file.path, repo_type="dataset", revision=listing.commit, endpoint=constants.ENDPOINT)
    headers, failures, most = build_hf_headers() | {"Accept-Encoding": "identity"}, 0, 0
    with part.open("ab", buffering=0) as out:  # unbuffered: a full disk shows at the write, not at the end
        count(out.tell())
        while (have := out.tell()) < file.size:
            most, problem = max(most, have), None
            try:
                asked = headers | {"Range": f"bytes={have}-"}
                with http_stream_backoff("GET", url, headers=asked, timeout=TIMEOUT_S) as answer:
                    hf_raise_for_status(answer)
                    if answer.status_code == 200:  # no ranges there: all of it comes again
                        out.truncate(out.seek(0))
                    for data in answer.iter_bytes():  # as it comes: chunks of a size lose the last one
                        if stopped.is_set():
                            return
                        _write(out, data, part)
                        count(len(data))
                        if out.tell() > file.size:
                            part.unlink()
                            raise InputError(
                                f"{listing.name} lists {file.path} with {file.size} bytes, and more came. The part was "
                                "removed. Try another mirror (HF_ENDPOINT)."
                            )
            except (HfHubHTTPError, InputError):
                raise
            except Exception as error:  # of the connection; the library has a dozen kinds
                problem = error
            if stopped.is_set():
                return
            failures = 0 if out.tell() > most else failures + 1
            if failures == ATTEMPTS:
                raise problem or InputError(
                    f"{listing.name} lists {file.path} with {file.size} bytes, and only {out.tell()} came, {ATTEMPTS} "
                    "times. Try another mirror (HF_ENDPOINT)."
                )
            if problem or failures:
                time.sleep(1)
    with disk.checked(path, elsewhere=ELSEWHERE):
        part.rename(path)


def _write(out: io.FileIO, data: bytes, path: Path) -> None:
    with disk.checked(path, elsewhere=ELSEWHERE):
        rest = memoryview(data)
        while rest:  # the last write before a full disk may be short
            rest = rest[out.write(rest) :]


def _require_digest(path: Path, file: HubFile, name: str) -> None:
    found, listed = _digest(path, large=file.sha256 is not None), file.digest
    if found != listed:
        path.unlink()
        raise InputError(
            f"{path} is not what {name} lists: its digest is {found[:16]}…, and {listed[:16]}… was expected. It was "
            "removed; the same command fetches it again. If that does not help, do not trust the mirror."
        )


def rows_of(listing: HubListing, wanted: HubSet, place: Path) -> Path:
    """The path or pattern of a fetched set's rows, for an import; compares them with the pinned digest.

    Raises:
        InputError: another digest than the pinned one.
    """
    repository = listing.name.rpartition("/")[2]
    found = sorted(file.path for file in listing.files if matches(file.path, wanted.files, repository))
    each = [_digest(place / path, large=True) for path in found]
    whole = each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()
    if wanted.sha256 is None:
        print_line(f"no digest of these rows is pinned; theirs is sha256: {whole}")
    elif whole != wanted.sha256:
        raise InputError(
            f"{place}: the rows' sha256 is {whole}; expected {wanted.sha256}. It is another version: pin its revision "
            "(OWNER/NAME@REVISION under hub:), or the new digest if you trust it."
        )
    return place / found[0] if len(found) == 1 else (place / found[0]).with_name(PurePosixPath(wanted.files).name)


def _digest(path: Path, *, large: bool) -> str:
    made: Any = (
        hashlib.sha256() if large else hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    )
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            made.update(block)
    return str(made.hexdigest())


def command(name: str, place: Path) -> str:
    """The command of huggingface_hub that fetches a repository, for another machine."""
    plain, _, revision = name.partition("@")
    return f"hf download {plain} --repo-type dataset{f' --revision {revision}' if revision else ''} --local-dir {place}"


def _problem(error: Exception, name: str, place: Path) -> InputError:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    hub, first = constants.ENDPOINT, one_line(lines[0])[:200]
    causes = [error, *(each for each in (error.__cause__, error.__context__) if isinstance(each, Exception))]
    answered = next((each for each in causes if isinstance(each, HfHubHTTPError)), None)
    if isinstance(error, GatedRepoError):
        return InputError(
            f"{name} has terms: accept them at {hub}/datasets/{name.partition('@')[0]}, then hf auth login."
        )
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
        return InputError(f"{hub} has no set {name} that it shows you ({first}). Check its name and revision there.")
    if answered is not None:
        status = answered.response.status_code
        return InputError(f"{hub} answered {status} for {name}: {first}. The same command goes on where it stopped.")
    off = " HF_HUB_OFFLINE is set; =0 allows it." if isinstance(error, OfflineModeIsEnabled) else f" ({first})"
    return InputError(f"{hub} cannot be reached.{off} On a machine with network: {command(name, place)}")
