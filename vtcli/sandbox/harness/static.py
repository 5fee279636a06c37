"""The static check: it gives the policy a clear message at once instead of a kernel's refusal.

It does not count as security: three lines of ``getattr`` evade it, and the kernel refuses the same operations. CodeV
(appendix 12) scans for deleting, moving and renaming files. CodeDance (6.2) blocks input and termination.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Sequence

_DELETES = "deleting, moving or renaming files is not allowed; write a new file instead"
_COMMANDS = "starting other programs is not allowed; use the Python libraries that are installed"
_NETWORK = "there is no network here; use the images that are given"
_PROCESS = "ending or forking the process is not allowed; let the code run to its end"

CALLS: dict[str, str] = {
    **dict.fromkeys(("os.remove", "os.unlink", "os.rmdir", "os.removedirs", "os.rename", "os.renames"), _DELETES),
    **dict.fromkeys(("os.replace", "shutil.rmtree", "shutil.move"), _DELETES),
    **dict.fromkeys(("os.system", "os.popen", "os.startfile"), _COMMANDS),
    **dict.fromkeys(("os.kill", "os.killpg", "os.abort", "os._exit", "os.fork", "os.forkpty"), _PROCESS),
}
MODULES: dict[str, str] = {
    "subprocess": _COMMANDS,
    "pty": _COMMANDS,
    "socket": _NETWORK,
    "requests": _NETWORK,
    "urllib.request": _NETWORK,
    "http.client": _NETWORK,
    "ftplib": _NETWORK,
}
FAMILIES = {"os.exec": _COMMANDS, "os.spawn": _COMMANDS, "os.posix_spawn": _COMMANDS}
_METHODS = {"unlink": _DELETES, "rmdir": _DELETES}  # pathlib's; others have methods of these names, too
_NAMES = {"input": "there is nobody to answer input(); print what is needed and go on"}


def refused(tree: ast.Module, known: Container[str] = ()) -> str | None:
    """Reason for the policy why this code is not run; None when it is. Only calls are refused, never imports: an
    unused ``import subprocess`` does no harm. ``known``: names that earlier runs have defined."""
    nodes = list(ast.walk(tree))
    names = _imported(nodes)
    defined, paths = _defined(nodes), _paths(nodes)
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        asked = node.func.id if isinstance(node.func, ast.Name) else ""
        why = _NAMES.get(asked) if asked not in defined and asked not in known else None
        why = why or _why(node, names) or _of_path(node.func, paths)
        if why:
            return f"not run: line {node.lineno}: `{_shown(node.func)}`: {why}."
    return None


def _paths(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that are given something made of a ``Path``, loops over its files included."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and _mentions_path(node.value):
            found |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.For | ast.comprehension) and _mentions_path(node.iter):
            found |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    return found


def _mentions_path(node: ast.AST) -> bool:
    return any(getattr(n, "id", getattr(n, "attr", "")) == "Path" for n in ast.walk(node))


def _of_path(called: ast.expr, paths: set[str]) -> str | None:
    if not isinstance(called, ast.Attribute) or called.attr not in _METHODS:
        return None
    made = any(isinstance(n, ast.Name) and n.id in paths for n in ast.walk(called.value))
    return _METHODS[called.attr] if made or _mentions_path(called.value) else None


def _why(call: ast.Call, names: dict[str, str]) -> str | None:
    dotted = _dotted(call.func, names)
    if dotted:
        if dotted in CALLS:
            return CALLS[dotted]
        for module, why in MODULES.items():
            if dotted.startswith(module + "."):
                return why
        for prefix, why in FAMILIES.items():
            if dotted.startswith(prefix):
                return why
    return None


def _imported(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Meanings of names: ``import os as o`` gives o -> os, ``from os import remove`` gives remove -> os.remove."""
    names = {"os": "os", "shutil": "shutil", "subprocess": "subprocess"}  # perhaps imported in an earlier run
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _defined(nodes: Sequence[ast.AST]) -> set[str]:
    functions = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return functions | {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *reversed(parts)])


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "..."
