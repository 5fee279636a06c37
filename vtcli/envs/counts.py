"""Number of items of a task whose rows are imported: all of them, or as many as asked for; and the rows left over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vtcli.data.generators.item import Survey
from vtcli.data.inputs import survey
from vtcli.envs.parts import HELD_OUT_FIRST, Data, Task
from vtcli.errors import ConfigError, InputError


def counted(data: Data, merged: object = None) -> tuple[Data, list[str]]:
    """``data`` with a number for every count of null, and a sentence for everything that the files have beyond that.
    Where shards are ``merged`` the files are looked at for null alone: they may be elsewhere.

    Raises:
        ConfigError: null where the generator has no end.
        InputError: fewer rows than asked for, a file that cannot be read.
    """
    tasks: dict[str, Task] = {}
    notes, empty = list[str](), list[str]()
    for name, task in data.tasks.items():
        counts: dict[str, int] = {}
        for split in HELD_OUT_FIRST:
            key, wanted = f"data.tasks.{name}.{split}", getattr(task, split)
            # Looked at only where needed: a survey opens every file of the set.
            found = survey(task.generate, split) if wanted is None or (wanted > 0 and not merged) else None
            if found is None:
                if wanted is None:
                    raise ConfigError(f"{key}: null means all rows, but this generator has no end. Give a number.")
                continue
            if found.rows is None:
                if wanted is None:
                    raise ConfigError(f"{key}: null means all rows, but {found.source} is a stream. Give a number.")
                counts[split] = wanted
                continue
            if wanted is not None and wanted > found.rows:
                raise InputError(
                    f"{found.source} has {found.rows} rows, and {key}={wanted} asks for more. Lower it, or give null "
                    "for all rows."
                )
            counts[split] = found.rows if wanted is None else wanted
            empty += [found.source] if wanted is None and not found.rows else []
            notes += _left(found, found.rows, key, counts[split])
        tasks[name] = replace(task, **counts)
    if empty and not any(getattr(task, split) for task in tasks.values() for split in HELD_OUT_FIRST):
        if all(Path(source).is_file() and not Path(source).stat().st_size for source in empty):
            raise InputError(f"{' and '.join(dict.fromkeys(empty))}: empty. Give a file with rows.")
        raise InputError(
            f"{' and '.join(dict.fromkeys(empty))}: no row is of a split that is asked for, or none at all."
        )
    return replace(data, tasks=tasks), notes


def _left(found: Survey, rows: int, key: str, used: int) -> list[str]:
    notes: list[str] = []
    if used < rows:
        notes.append(f"{found.source} has {rows} rows; the first {used} are used ({key}={used}; null takes all)")
    if found.unread:
        notes.append(f"{found.source} has columns that are not read: {', '.join(found.unread)}")
    return notes
