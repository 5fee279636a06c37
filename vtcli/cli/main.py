"""The command line: its groups of commands, how it ends, and what it does with signals. Imports nothing heavy."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from vtcli import __version__
from vtcli.cli import artifacts, benchmarks, config, doctor, plan, run, sandbox, stages, view
from vtcli.cli.console import say
from vtcli.errors import ConfigError, VtcliError
from vtcli.foreign import print_line, visible
from vtcli.runs.ending import arrived, causes, end_only_later, insist
from vtcli.runs.launch import ERRORS, leave_error

USER_ERROR, INTERRUPTED, TERMINATED = 2, 130, 143
DEFECT = (
    "this is a defect, not a mistake of yours. Finished work is kept, and the same command continues. "
    "A report should hold the command, the lines above and the output of `vtcli doctor`."
)

INSTEAD = {
    "vtcli rl +recipe=toolsrl (reinforcement) or vtcli sft +recipe=NAME (demonstrations)": "train fit",
    "vtcli rl +recipe=toolsrl": "grpo ppo reinforce rlhf",
    "vtcli sft +recipe=NAME": "finetune fine-tune",
    "vtcli eval model=policy@latest +recipe=toolsrl": "evaluate test validate bench benchmark",
    "vtcli synth data=NAME": "generate import dataset data prepare",
    "vtcli judge REPORT +recipe=NAME": "score",
    "vtcli serve model=policy@latest": "infer inference predict chat deploy api",
    "vtcli artifacts ls": "ls list show models",
    "vtcli run NAME (`vtcli run` lists them)": "reproduce claim map quickstart pipeline",
    "vtcli --help": "help",
}
"""Commands by the words that people type first in their place."""


class Commands(TyperGroup):
    """The commands; answers an unknown word with the command to type."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0] if args else ""
        meant = next((command for command, words in INSTEAD.items() if word in words.split()), None)
        if meant and word not in self.commands:
            raise ConfigError(f"vtcli has no command {word!r}. Type {meant}. `vtcli --help` lists the commands.")
        return super().resolve_command(ctx, args)


HELP = """Train vision-language models to think with images.

\b
A pipeline is synth → filter → sft → rl → eval; each stage reads and writes
artifacts (NAME:vN, NAME@latest), and makes what is missing:
  vtcli run quickstart             all of it in miniature, without a GPU
  vtcli rl +recipe=toolsrl         a paper's recipe at the scale that fits
  vtcli eval model=policy@latest +recipe=toolsrl benchmark=[vstar]
  vtcli view report@latest         what came out, in a browser

Arguments are key=value; `vtcli COMMAND --help` has an example of each."""

app = typer.Typer(
    cls=Commands,
    help=HELP,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes longer to import than --help may take
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(stages.app)
app.add_typer(artifacts.app, name="artifacts")
app.add_typer(benchmarks.app, name="benchmarks")
app.add_typer(config.app, name="config")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(doctor.app)
app.add_typer(plan.app)
app.add_typer(run.app)
app.add_typer(view.app)


def main() -> None:
    """Entry point. A user's mistake ends with exit code 2 and one message, an interrupt with 130, SIGTERM (Slurm's time
    limit or preemption) with 143."""
    signal.signal(signal.SIGTERM, _terminate)  # the default would end Python at once, with the tracker's run open
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup and "&" of a script ignore Ctrl-C
        signal.signal(signal.SIGINT, _interrupt)
    code: list[int] = []
    atexit.register(_leave, code)  # registered first, so it runs last
    try:
        _run()
    except SystemExit as end:
        code.append(end.code if isinstance(end.code, int) else bool(end.code))
        raise
    finally:  # what closes at the end of Python is not cut off; an exception there would be a traceback
        arrived()
        for number, own in ((signal.SIGTERM, _terminate), (signal.SIGINT, _interrupt)):
            if signal.getsignal(number) is own:
                end_only_later(number)


def _leave(code: list[int]) -> None:
    """Ends a rank that has failed, once everything is closed. Otherwise torch would wait at the end of Python for
    collectives that a lost rank never joins."""
    if code and code[0] and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code[0])


def _run() -> None:
    try:
        _command()
    except VtcliError as error:
        _fail(str(error))
    except OSError as error:
        reason = _disk_problem(error)
        if reason is None:
            _unexpected(error)
        _fail(reason)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED) and ERRORS not in os.environ:
            how = "interrupted" if end.code == INTERRUPTED else "terminated"
            say(f"{how}; the same command continues where it stopped.")
        raise
    except Exception as error:
        _unexpected(error)


def _command() -> None:
    """Runs the command. An error that is raised while a signal ends it counts as that end, because some libraries
    cannot close after an interrupt."""
    try:
        app()
    except KeyboardInterrupt as error:
        raise SystemExit(INTERRUPTED) from error
    except Exception as error:
        code = next((end for cause in causes(error) if (end := _code_of(cause))), None)
        if code is None:
            raise
        reason = _disk_problem(error) if isinstance(error, OSError) else None
        say(visible(reason or (str(error) if isinstance(error, VtcliError) else f"{type(error).__name__}: {error}")))
        raise SystemExit(code) from error


def _code_of(cause: BaseException) -> int | None:
    """Returns the exit code for the exception of a signal, or None for any other."""
    if isinstance(cause, KeyboardInterrupt):
        return INTERRUPTED
    return TERMINATED if isinstance(cause, SystemExit) and cause.code == TERMINATED else None


def _interrupt(number: int, frame: FrameType | None) -> None:
    insist(lambda: signal.default_int_handler(number, frame))


def _terminate(number: int, frame: object) -> None:
    del frame
    end_only_later(number)
    insist(_end)


def _end() -> NoReturn:
    raise SystemExit(TERMINATED)


@app.callback(invoke_without_command=True, help=HELP)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print_line(f"vtcli {__version__}", sys.stdout)
        raise typer.Exit


def _fail(message: str) -> NoReturn:
    if leave_error(message, USER_ERROR):  # a rank: the process that started it prints the first error of all
        sys.exit(USER_ERROR)
    from rich.console import Console

    # emoji: a ":x:" in a path stays, and rich does not load its list of them where memory has run out
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
    console.print("error: ", style="bold red", end="")
    console.print(visible(message))
    sys.exit(USER_ERROR)


def _disk_problem(error: OSError) -> str | None:
    """Returns a sentence for a disk problem that a user can fix, or None for any other error."""
    import errno

    advice = {
        errno.ENOSPC: "the disk is full: make room or set VTCLI_HOME to another disk, then give the same command again",
        errno.EDQUOT: "your disk quota is used up: make room, then give the same command again",
        errno.EFBIG: "the file would exceed the file size limit (`ulimit -f`): raise it",
        errno.EIO: "the disk fails (`dmesg` says more): set VTCLI_HOME to another disk, or start elsewhere",
        errno.EMFILE: "this process has too many files open (`ulimit -n`): raise the limit",
        errno.ENFILE: "this machine has too many files open: end other programs, then give the same command again",
        errno.EACCES: "you have no permission there: change the rights of that path, give another (VTCLI_HOME, "
        "--config-dir) or start elsewhere",
        errno.EROFS: "that file system is read-only: choose another folder with VTCLI_HOME or start elsewhere",
        errno.ENAMETOOLONG: "a name may have 255 bytes: shorten what you gave, or set VTCLI_HOME to a shorter path",
        errno.ENOTDIR: "a part of that path is a file, not a folder: check it, and VTCLI_HOME",
        errno.ELOOP: "its links lead in a circle: remove one of them, or give another path",
    }.get(error.errno or 0)
    return f"{error.filename or 'writing'}: {error.strerror}; {advice}." if advice else None


def _memory_problem(error: BaseException) -> str | None:
    """Returns a sentence for memory that ran out, here or on a GPU, or None. Compares names and texts, because
    importing torch for its class would need memory and seconds."""
    text = str(error).strip() or f"{type(error).__name__}, a block could not be allocated"
    named = isinstance(error, MemoryError) or any(c.__name__ == "OutOfMemoryError" for c in type(error).__mro__)
    said = (
        "can't allocate memory",
        "Cannot allocate memory",
        "can't start new thread",
    )  # no room for its stack
    if not named and not any(words in text for words in said):
        return None
    reason = next((line for line in text.splitlines() if "llocat" in line), text.splitlines()[0])
    return (
        f"out of memory: {reason[:300]}\n"
        "Finished work and the last checkpoint are whole, and the same command continues. What takes less: "
        "micro-batches of fewer tokens (STAGE.backend.batch_tokens=…, the same update), "
        "STAGE.backend.activation_checkpointing=true, STAGE.backend.offload=optimizer, and for rl engine.max_batch=…; "
        "`vtcli plan` says what fits on a GPU."
    )


def _lost_rank(error: Exception) -> str | None:
    """Returns a sentence for a collective that failed because another process is gone, or None. Compares names and
    texts, because importing torch for its classes takes seconds."""
    text = str(error)
    broken = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
    named = type(error).__name__ in ("DistBackendError", "DistNetworkError")
    if int(os.environ.get("WORLD_SIZE") or 1) < 2 or not (named or any(said in text for said in broken)):
        return None
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return (
        f"another rank of this run has ended, so rank {os.environ.get('RANK')} ends too ({first[:200]}). Its own error "
        "is in the output before this line; a process that was killed says nothing (`sacct`, `dmesg`: memory, a lost "
        "node). The same command, or `scontrol requeue`, continues from the last checkpoint."
    )


def _frames_from_outside(error: Exception) -> list[traceback.FrameSummary]:
    """Returns the frames of a user's own tool, reward or rule, and of its callees; none if only vtcli and libraries
    ran."""
    root = Path(__file__).parents[2]
    ours = (f"{root / 'vtcli'}/", f"{root / 'stages'}/")
    others = (f"{sysconfig.get_path('stdlib')}/", "<")  # <: code of no file

    def known(frame: traceback.FrameSummary) -> bool:
        library = "/site-packages/" in frame.filename or "/dist-packages/" in frame.filename
        return library or frame.filename.startswith(ours + others)

    frames = traceback.extract_tb(error.__traceback__)
    called = itertools.dropwhile(lambda frame: not frame.filename.startswith(ours), frames)  # not what starts vtcli
    return list(itertools.dropwhile(known, called))


def _unexpected(error: Exception) -> NoReturn:
    reason = _memory_problem(error)
    if reason is not None:
        _fail(reason)
    lost = _lost_rank(error)
    if lost is not None:
        first = (os.environ.get("VTCLI_NODE_RANK") or os.environ.get("LOCAL_RANK", "0")) == "0"  # one line a node
        if first and ERRORS not in os.environ:  # else the lost rank's own error is shown
            say(lost)
        sys.exit(1)
    if own := _frames_from_outside(error):
        print_line("".join(traceback.format_list(own)).rstrip())
        _fail(
            f"{own[0].name} in {own[0].filename} raised {type(error).__name__}: {error}\nThis code is not part of "
            "vtcli: fix it and give the same command again."
        )
    if leave_error(f"{traceback.format_exc()}{DEFECT}", 1):
        sys.exit(1)
    print_line(traceback.format_exc().rstrip())
    say(DEFECT)
    sys.exit(1)


if __name__ == "__main__":
    main()
