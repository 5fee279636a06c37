"""The worker above its sockets: the namespace of the code, one run after the other, and the images of each.

Nothing here protects anything: the code runs in the same interpreter and may change all of it. What holds is outside.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import os
import symtable
import sys
import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal, cast

from PIL import Image

from vtcli.protocols import Pixels
from vtcli.sandbox.harness import capture, figures, pixels, repair, static, streams, tracebacks
from vtcli.sandbox.harness.capture import Gallery, GalleryImage
from vtcli.sandbox.provenance import recorder
from vtcli.sandbox.provenance.recorder import Recorder
from vtcli.sandbox.types import Capture, Help, Operation, RunLimits


@dataclass(frozen=True, slots=True)
class Program:
    """Code compiled for one run. If the last expression's value is wanted and the text ends in an expression, ``last``
    is that expression and ``body`` the rest; otherwise ``last`` is None and ``body`` is everything."""

    source: str
    tree: ast.Module
    body: CodeType
    last: CodeType | None = None

    def assigns(self, name: str) -> bool:
        """Returns True if the code assigns the module's ``name``. A value that an earlier run left is then not taken
        again."""
        return _assigns(symtable.symtable(self.source, "<code>", "exec"), name)


def _assigns(scope: symtable.SymbolTable, name: str) -> bool:
    """Searches the module's scope, and inner ones that declare the name global."""
    if name in scope.get_identifiers():
        symbol = scope.lookup(name)
        if (symbol.is_assigned() or symbol.is_imported()) and (scope.get_type() == "module" or symbol.is_global()):
            return True
    return any(_assigns(inner, name) for inner in scope.get_children())


def compiled(source: str, name: str, value: bool) -> Program:
    """``name`` is the file's in tracebacks; ``value``: the last expression's value is wanted. Raises ``SyntaxError``,
    ``ValueError``, ``MemoryError`` or ``RecursionError`` for a text that Python does not take."""
    tree = ast.parse(source, name)
    end = tree.body[-1] if tree.body else None
    if not value or not isinstance(end, ast.Expr):
        return Program(source, tree, compile(tree, name, "exec", dont_inherit=True))
    body = compile(ast.Module(tree.body[:-1], tree.type_ignores), name, "exec", dont_inherit=True)
    return Program(source, tree, body, compile(ast.Expression(end.value), name, "eval", dont_inherit=True))


Kind = Literal["ok", "no_output", "error", "exit", "refused", "limit"]
RECURSION = 5000  # what sys.setrecursionlimit may be set to


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """``types.Setup`` as the worker gets it: ``pictures`` (H, W, 3) uint8 in memory shared by episodes; ``image_files``
    are in ``workspace`` already; ``videos`` maps a variable to an open file descriptor or a path."""

    pictures: tuple[Pixels, ...] = ()
    variables: Mapping[str, int] = field(default_factory=dict[str, int])
    image_files: Mapping[str, int] = field(default_factory=dict[str, int])
    videos: Mapping[str, int | str] = field(default_factory=dict[str, "int | str"])
    workspace: str = "."
    prelude: str = ""
    before_each: str = ""
    capture: tuple[Capture, ...] = ("show", "pil_show")
    persist: bool = True
    limits: RunLimits = field(default_factory=RunLimits)
    help: Help = field(default_factory=Help)


@dataclass(frozen=True, slots=True)
class Execution:
    """One run, as the worker tells it. stdout and stderr went to the descriptors 1 and 2."""

    kind: Kind
    error: str = ""
    value: str = ""
    images: tuple[GalleryImage, ...] = ()
    images_dropped: int = 0
    operations: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()


class Harness:
    """The namespace and the records of one worker. ``prepare`` once, then ``execute`` for every run."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        self.recorder = Recorder(
            setup.pictures, setup.image_files, setup.workspace, clamp=setup.help.clamp, paths=setup.help.paths
        )
        self.runs = 0
        self.namespace: dict[str, Any] = {}
        self._files: capture.FileStamps = {}
        self._gallery = Gallery(setup.limits, self.recorder)

    def prepare(self) -> None:
        """Makes the variables and runs the prelude. Raises what the prelude, which is the recipe's, raises."""
        builtins.input = _no_input
        sys.setrecursionlimit = _capped_recursion
        os.utime = _times_if_possible
        os.chdir(self.setup.workspace)
        recorder.activate(self.recorder)
        figures.show_with(self._show)
        self._renew()

    def execute(self, source: str) -> Execution:
        """Runs the code and gathers what it showed. Never raises: also what the harness itself stumbles over, in a
        world that the code may have bent, is a run that failed."""
        self.runs += 1
        try:
            return self._execute(source)
        except BaseException as problem:
            return Execution("error", tracebacks.text_of(problem, self.setup.limits.error_chars))

    def _begin(self) -> streams.Meter:
        """Restores the state for a run, whatever the previous run left, and returns the meter of the run's streams."""
        meter = streams.fresh(self.setup.limits.output_bytes)
        sys.settrace(None)
        threading.settrace(None)  # pyright: ignore[reportArgumentType]
        os.chdir(self.setup.workspace)
        self.recorder.begin()
        recorder.activate(self.recorder)
        recorder.DEPTH.inside = False
        self._gallery = Gallery(self.setup.limits, self.recorder)
        meter.begin()
        return meter

    def _renew(self) -> None:
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main  # dataclasses and pickle look their classes up there
        self.namespace = main.__dict__
        self.namespace["__builtins__"] = builtins
        for name, index in self.setup.variables.items():
            image = Image.fromarray(self.setup.pictures[index])
            self.recorder.give(image, self.recorder.fresh(index))
            self.namespace[name] = image
        if self.setup.videos:
            from vtcli.sandbox.video.reader import VideoReader

            for name, where in self.setup.videos.items():
                self.namespace[name] = reader = VideoReader(where)
                self.recorder.videos[id(reader)] = name
        if self.setup.prelude:
            exec(compile(self.setup.prelude, "<prelude>", "exec", dont_inherit=True), self.namespace)  # noqa: S102

    def _execute(self, source: str) -> Execution:
        meter = self._begin()
        program = self._compiled(source)
        if program is None:
            source, repairs = repair.repaired(source, self.setup.help)
            for text in repairs:
                self.recorder.note(text)
            program = self._compiled(source)
        refused = None
        if program is not None and self.setup.help.check:
            refused = static.refused(program.tree, self.namespace)
        if refused:
            return Execution("refused", refused, notes=tuple(self.recorder.notes))
        if not self.setup.persist and self.runs > 1:
            self._renew()
        if {"files", "printed_files"} & set(self.setup.capture):
            self._files = capture.image_files(self.setup.workspace)
        return self._run(source, program, meter)

    @property
    def _name(self) -> str:
        """The current run's, in tracebacks."""
        return f"<code {self.runs}>"

    def _compiled(self, source: str) -> Program | None:
        """None for a text that does not compile, or exhausts the parser."""
        try:
            return compiled(source, self._name, "value" in self.setup.capture)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None

    def _run(self, source: str, program: Program | None, meter: streams.Meter) -> Execution:
        kind: Kind = "ok"
        error, value = "", ""
        try:
            if self.setup.before_each:
                exec(compile(self.setup.before_each, "<setup>", "exec", dont_inherit=True), self.namespace)  # noqa: S102
                self.recorder.begin_log()
            linecache.cache[self._name] = (len(source), None, source.splitlines(keepends=True), self._name)
            if program is None:
                program = compiled(source, self._name, value=False)  # raises what is wrong with it, for the policy
            value = self._call(program)
            streams.flush()
            self._collect(source, program, meter)
        except SystemExit as ended:
            kind, error = "exit", f"SystemExit: {tracebacks.safe_text(ended.code, 200)}: the code ended its own run"
        except BaseException as problem:
            kind = "limit" if meter.exceeded else "error"
            error = tracebacks.text_of(problem, self.setup.limits.error_chars)
        finally:
            self._tidy()
        gallery, self._gallery = self._gallery, Gallery(self.setup.limits, self.recorder)  # nothing keeps the images
        if kind == "ok" and meter.exceeded:
            kind, error = "limit", f"more than {self.setup.limits.output_bytes} bytes were printed"
        if kind == "ok" and not (meter.something or gallery.images or gallery.dropped or value):
            kind = "no_output"
        if self.recorder.shown > len(self.recorder.operations):
            self.recorder.note(f"{self.recorder.shown} image operations: only the first are recorded")
        return Execution(
            kind,
            error,
            value,
            tuple(gallery.images),
            gallery.dropped,
            tuple(self.recorder.operations),
            tuple(self.recorder.notes),
        )

    def _call(self, program: Program) -> str:
        """Runs the code; the last expression's value as text, where it is captured and is no image."""
        exec(program.body, self.namespace)  # noqa: S102
        return "" if program.last is None else self._valued(eval(program.last, self.namespace), "value", "")  # noqa: S307

    def _valued(self, value: object, origin: Capture, name: str) -> str:
        """An image, figure or list of images goes to the gallery; anything else but None is returned as text."""
        if value is None:
            return ""
        if pixels.is_image(value):
            self._gallery.add(value, origin, name)
            return ""
        if type(value) in (list, tuple) and value and all(pixels.is_image(v) for v in cast("list[object]", value)):
            for entry in cast("list[object]", value):
                self._gallery.add(entry, origin, name)
            return ""
        drawn = figures.of_artist(value)
        if drawn is not None:
            self._gallery.add_figure(drawn, origin)
            return ""
        return tracebacks.value_text(value, self.setup.limits.kept_output_chars)

    def _collect(self, source: str, program: Program, meter: streams.Meter) -> None:
        """Files and the variable ``result``."""
        wanted = set(self.setup.capture)
        if wanted & {"files", "printed_files"}:
            names = capture.changed(self._files, capture.image_files(self.setup.workspace))
            if "files" not in wanted:
                names = capture.printed(names, meter.text)
            for name in names:
                origin: Capture = "files" if "files" in wanted else "printed_files"
                self._gallery.add_file(name, origin)
        if "result" in wanted and program.assigns("result"):
            found = self.namespace.get("result")
            text = self._valued(found, "result", "result")
            if text:
                self.recorder.note("`result` holds no image: it must be a PIL image or an array (H, W, 3)")

    def _show(self, value: object, origin: str) -> None:
        """``plt.show`` and ``Image.show`` end here."""
        if origin not in self.setup.capture:
            said = "plt.show()" if origin == "show" else "Image.show()"
            self.recorder.note(f"{said} shows nothing here")
        elif origin == "show":
            self._gallery.add_figure(value, "show")
        else:
            self._gallery.add(value, "pil_show")

    def _tidy(self) -> None:
        """Cleans up after a run: closes figures, stops tracing, flushes the output."""
        for step in (streams.flush, figures.close_all, lambda: sys.settrace(None)):
            try:
                step()
            except BaseException as problem:
                self.recorder.trouble("tidy", problem if isinstance(problem, Exception) else RuntimeError("tidy"))


_set_times = os.utime


@functools.wraps(_set_times)
def _times_if_possible(path: Any, *args: Any, **kwargs: Any) -> None:
    """``os.utime`` that raises no error for an existing file below tier ``full``, although no time can be set there.
    shutil.copy2 ends with this call, and a successful copy must not look like a failure."""
    try:
        _set_times(path, *args, **kwargs)
    except PermissionError:
        os.stat(path)  # noqa: PTH116 - may be a descriptor; what is not there is an error


def _no_input(*_: object) -> str:
    raise EOFError("input() has nobody to answer it here")


_set_recursion = sys.setrecursionlimit


def _capped_recursion(limit: int, /) -> None:
    _set_recursion(min(limit, RECURSION))
