"""Files of the host that the worker may read: the files that Python and the imported libraries need, and no others."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
"""Readable and writable."""

_SYSTEM = (
    "/lib64",
    "/usr/lib64",
    f"/lib/{os.uname().machine}-linux-gnu",
    f"/usr/lib/{os.uname().machine}-linux-gnu",
    "/usr/share/fonts",
    "/usr/share/zoneinfo",
    "/usr/share/fontconfig",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
"""Shared libraries that are loaded late, fonts and time zones, as far as they exist."""


def required() -> tuple[str, ...]:
    """The folders of the standard library and of the installed packages of this interpreter."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(dict.fromkeys(p for p in paths if Path(p).is_dir()))


def paths() -> tuple[str, ...]:
    """Folders and files that code may read: ``required``, system libraries and fonts, mapped libraries, and other
    packages. A library mapped into this process counts as a single file, unless its folder is listed. A package
    imported from elsewhere, such as an editable install, counts with its own folder, not the folder of the
    repository. Call it after the imports."""
    found = [p for p in (*required(), *_prefixes(), *_SYSTEM) if Path(p).exists()]
    for path in _mapped_libraries() + _packages_elsewhere():
        if not any(_within(path, known) for known in found):
            found.append(path)
    return tuple(path for path in found if not any(_within(path, other) for other in found if other != path))


def _prefixes() -> list[str]:
    """Libraries beside the standard library that are loaded late (conda), and packages of the distribution."""
    prefixes = [p for p in dict.fromkeys((sys.prefix, sys.base_prefix)) if p != "/"]
    libraries = [f"{p}/lib" for p in prefixes if p != "/usr"]  # /usr/lib is the whole distribution's
    return libraries + [p for p in sys.path if Path(p).is_dir() and any(_within(p, prefix) for prefix in prefixes)]


def _within(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _mapped_libraries() -> list[str]:
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    mapped = dict.fromkeys(fields[5] for line in lines if len(fields := line.split(maxsplit=5)) > 5)
    return [path for path in mapped if ".so" in Path(path).name and Path(path).is_file()]


def _packages_elsewhere() -> list[str]:
    folders: dict[str, None] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            name.partition(".")[0] != name
            or name == "__main__"
            or not isinstance(file, str)
            or not Path(file).is_file()
        ):
            continue
        path = Path(file)
        folders[str(path.parent if path.name.startswith("__init__.") else path)] = None
    return list(folders)
