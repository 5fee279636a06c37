"""The command line as a user meets it: quick, one message for a mistake, exit codes that scripts can rely on."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import forked
import pytest
import typer
from cases import failures
from small_runs import command as in_process

from vtcli.cli import main
from vtcli.config import compose, habits
from vtcli.errors import ConfigError, InputError
from vtcli.runbook.step import STAGES
from vtcli.store.artifacts import ArtifactStore

HEAVY = ("torch", "transformers", "deepspeed", "mlflow", "hydra", "numpy", "pyarrow", "rich", "yaml")
RARELY_USED = (
    "torch",
    "transformers",
    "deepspeed",
    "mlflow",
    "scipy",
    "matplotlib",
    "pandas",
    "sklearn",
    "datasets",
    "sympy",
)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def vtcli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``vtcli ARGV`` in this process, with the handling of every error; only its handlers of signals are left out."""
    monkeypatch.chdir(tmp_path)

    def done(*argv: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["vtcli", *argv])
        handlers, level, code = [*logging.root.handlers], logging.root.level, 0
        capfd.readouterr()
        try:
            main._run()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:  # Hydra sets up the logs of its process
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)
        return Done(code, *capfd.readouterr())

    return done


Vtcli = Callable[..., Done]


def test_help_lists_what_works_and_nothing_else(vtcli: Vtcli) -> None:
    done = vtcli("--help")
    assert done.returncode == 0
    listed = done.stdout.partition("Commands:")[2].split()
    for command in ("synth", "filter", "sft", "rl", "eval", "judge", "serve", "artifacts", "config", "doctor"):
        assert command in listed


def test_a_process_ends_with_the_code_of_its_error(tmp_path: Path) -> None:
    done = forked.done("vtcli", ["filter", "data=nothing:v1", "scale=tiny"], tmp_path)
    assert done.returncode == 2
    assert "error: There is no artifact nothing:v1" in done.stderr and "Traceback" not in done.stderr


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['vtcli', '--help']\n"
        "from vtcli.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('loaded:', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "loaded: []"


def test_stages_start_without_what_few_of_their_runs_use(tmp_path: Path) -> None:
    """scipy's statistics and matplotlib were half of a start's CPU time. Only `rl` begins with torch."""
    program = "import sys\nfrom stages import eval, filter, judge, serve, sft, synth\n"
    program += f"print('loaded:', [m for m in {RARELY_USED!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "loaded: []"


def test_help_answers_quickly(tmp_path: Path) -> None:
    """0.3 s is the promise; the CPU time of the fastest of three keeps a busy machine from failing it."""
    program = "import os, subprocess, sys; subprocess.run([sys.executable, '-m', 'vtcli', '--help'], stdout=-3);"
    program += "t = os.times(); print(t.children_user + t.children_system)"
    line = [sys.executable, "-c", program]
    taken = [float(subprocess.run(line, cwd=tmp_path, capture_output=True, check=True).stdout) for _ in range(3)]
    assert min(taken) <= 0.3


def test_every_stage_explains_its_arguments(vtcli: Vtcli) -> None:
    done = vtcli("rl", "--help")
    assert done.returncode == 0
    assert "+recipe=NAME" in done.stdout
    assert vtcli("--version").stdout.startswith("vtcli 0.")


def commands() -> dict[str, Any]:
    """Every command by its words, groups included."""
    root = typer.main.get_command(main.app)
    found = {"": root}
    for name, each in root.commands.items():
        found[name] = each
        found |= {f"{name} {below}": command for below, command in getattr(each, "commands", {}).items()}
    return found


def test_help_is_one_screen_with_an_example_that_works() -> None:
    """At most 80 columns and 40 lines. Examples of stages compose, without what stands for a value of the user's."""
    wrong: list[str] = []
    for name, command in commands().items():
        context = command.make_context("vtcli", [], resilient_parsing=True, terminal_width=80)
        lines = command.get_help(context).splitlines()
        wrong += [f"{name}: {len(line)} columns: {line}" for line in lines if len(line) > 80]
        wrong += [f"{name}: {len(lines)} lines"] * (len(lines) > 40)
        listing = hasattr(command, "commands")
        wrong += [f"{name}: {line}" for line in lines[1:] if listing and line.endswith("...")]
        wrong += [f"{name}: no example"] * (not listing and "xample" not in "\n".join(lines))
        for example in re.findall(r"^ +vtcli (\w+ .*?)(?: {3,}.*)?$", "\n".join(lines), re.MULTILINE):
            verb, *words = example.split()
            words = [
                word for word in words if "mine" not in word and word not in ("--config-dir", "my", "--preview", "20")
            ]
            if verb not in STAGES:
                continue
            try:
                next(compose.jobs(compose.plan(verb, words)))
            except ConfigError as error:
                wrong.append(f"vtcli {example}: {error}")
    assert not wrong, "\n".join(wrong)


def test_habits_of_other_trainers_lead_to_keys_and_commands() -> None:
    values = compose.load("rl", ["+recipe=toolsrl", "scale=small", "engine=vllm_server"]).values
    leaves = {*compose.flat(values), "model", "data", "+recipe"}
    known = {leaf.rsplit(".", n)[0] for leaf in leaves for n in range(leaf.count(".") + 1)}
    keys = [*habits.KEYS.values(), *(key for keys in habits.LEARNING.values() for key in keys.values())]
    assert [key for key in keys if key not in known] == []
    assert [line for line in main.INSTEAD if not {line.split()[1]} & {*commands(), "--help"}] == []
    taken = {word for words in main.INSTEAD.values() for word in words.split()}
    assert taken & set(commands()) == set()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["rl", "+recipe=toolsr"], "Did you mean 'toolsrl'?"),
        (["rl", "+recipe=toolsrl", "rl.optim.lrr=1"], "Did you mean 'rl.optim.lr'?"),
        (["rl", "+recipe=toolsrl", "seed=[1"], "cannot be read as an override"),
        (["config", "show", "rll"], "Did you mean 'rl'?"),
        (["rl", "+recipe=own"], "For a folder of your own: --config-dir FOLDER"),
        (["config", "validate", "scale=tiny"], "scale=tiny: expected the name of a recipe"),
        (
            ["rl", "+recipe=toolsrl", "scale=tiny", "rl.loss.kl_coef=0.1", "data=d:v1", "model=m:v1"],
            "set rl.reference=true\n  rl.loss.kl_coef is set in command line: rl.loss.kl_coef=0.1\n",
        ),
        (["synth", "--hlep"], "--hlep: there is no such option. `vtcli synth --help` lists"),
        (["rl", "--preview", "5"], "--preview: there is no such option"),
        (["rl", "--recipe", "toolsrl"], "--recipe: there is no such option. Did you mean +recipe=toolsrl?"),
        (["sft", "--learning-rate=1e-6"], "Did you mean sft.optim.lr=1e-6?"),
        (["rl", "toolsrl"], "Did you mean +recipe=toolsrl?"),
        (["rl", "+recipe=toolsrl", "model_name=x"], "Did you mean 'model'?"),
        (["rl", "+recipe=toolsrl", "rl.optim.lora.base=nf4"], "a 4-bit base (QLoRA) is not trained here"),
        (["sft", "+recipe=codev", "load_in_4bit=true"], "scale=small trains adapters"),
        (["rl", "+recipe=toolsrl", "nothing=1"], "`vtcli config show rl` prints every key"),
        (["train"], "vtcli has no command 'train'. Type vtcli rl +recipe=toolsrl"),
        (["synth", "--preview", "0"], "--preview 0: expected at least 1 row"),
        (["synth", "--preview=0"], "--preview 0: expected at least 1 row"),
        (["artifacts", "show", "nothing:v1"], "nothing:v1"),
        (["artifacts", "lineage", "nothing@latest"], "nothing@latest"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, which any error but one of vtcli's would end; how the command prints it, tests of processes
    show."""
    monkeypatch.chdir(tmp_path)
    assert in_process(argv) == (2, "")
    said = capfd.readouterr()
    assert said.err.count("error: ") == 1
    assert words in said.err
    assert said.out == ""
    assert not list(tmp_path.iterdir())  # nothing half written


def test_paper_scale_on_a_machine_that_cannot_run_it_ends_at_once(vtcli: Vtcli) -> None:
    started = time.monotonic()
    done = vtcli("rl", "+recipe=toolsrl", "scale=paper")
    assert done.returncode == 2
    assert "scale=paper with model Qwen/Qwen2.5-VL-7B-Instruct cannot run on this machine" in done.stderr
    assert "no CUDA device found; it needs 8 CUDA devices" in done.stderr
    assert "What would run here: scale=tiny." in done.stderr
    assert time.monotonic() - started < 20


def test_show_prints_each_value_with_its_origin(vtcli: Vtcli) -> None:
    done = vtcli("config", "show", "rl", "+recipe=toolsrl", "scale=paper", "rl.agent.sampling.temperature=0.7")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert rows["rl.agent.sampling.temperature"].split()[1:] == [
        "0.7",
        "command",
        "line:",
        "rl.agent.sampling.temperature=0.7",
    ]
    assert "conf/recipe/toolsrl.yaml:" in rows["rl.group_size"]
    assert "scale=auto: no accelerator found" in vtcli("config", "show", "rl").stderr


def test_cfg_job_is_hydras(vtcli: Vtcli) -> None:
    done = vtcli("rl", "+recipe=toolsrl", "scale=paper", "--cfg", "job", "--package", "rl.optim")
    assert done.returncode == 0, done.stderr
    assert "lr: 1.0e-06" in done.stdout


STUB = '''
import dataclasses, sys, time, types

@dataclasses.dataclass
class Config:
    seed: int
    name: str | None = None

# Code of no file, as that of a file that is not of vtcli is taken for a user's own.
exec(compile("""def run(config):
    BODY
""", "<stage>", "exec"))

module = types.ModuleType("stages.synth")
module.Config, module.run = Config, run
sys.modules["stages.synth"] = module
sys.argv = ["vtcli", "synth", "synth=null", "scale=tiny", *sys.argv[1:]]
from vtcli.cli.main import main
main()
'''


def stage_program(body: str, folder: Path) -> list[str]:
    """A program that is ``vtcli synth`` with a stage that does ``body``, in a process that starts as a user's does."""
    (folder / "program.py").write_text(STUB.replace("BODY", body))
    return [sys.executable, "program.py"]


def test_a_defect_keeps_its_traceback_and_exits_with_1(tmp_path: Path) -> None:
    stage_program("raise KeyError('pixels')", tmp_path)
    done = forked.done("program.py", [], tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "KeyError: 'pixels'" in done.stderr
    assert "this is a defect" in done.stderr


def test_what_a_users_own_code_raises_is_told_with_its_place(
    vtcli: Vtcli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "vtcli_rewards" / "own.py"  # a folder whose name begins as ours
    own.parent.mkdir()
    own.write_text("def rewarded(group):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    stub = types.ModuleType("stages.synth")
    stub.Config = make_dataclass("Config", [("seed", int), ("name", str | None, None)])
    exec(
        compile("def run(config):\n    from vtcli_rewards import own; own.rewarded([])", "<stage>", "exec"),
        stub.__dict__,
    )
    monkeypatch.setitem(sys.modules, "stages.synth", stub)
    done = vtcli("synth", "synth=null", "scale=tiny")
    assert done.returncode == 2 and "defect" not in done.stderr
    assert f'File "{own}", line 2, in rewarded' in done.stderr and "vtcli/cli" not in done.stderr
    assert f"error: rewarded in {own} raised ZeroDivisionError: division by zero" in done.stderr


TROUBLE = [
    (InputError("charts:v1 is not there"), "charts:v1 is not there"),
    (OSError(errno.ENOSPC, "No space left on device", "a/b"), "a/b: No space left on device"),
    (PermissionError(errno.EACCES, "Permission denied", "x"), "no permission"),
    (OSError(errno.EFBIG, "File too large"), "writing: File too large; the file would exceed"),
    (OSError(errno.EIO, "Input/output error", "a"), "a: Input/output error; the disk fails"),
    (OSError(errno.EMFILE, "Too many open files", "a"), "too many files open (`ulimit -n`)"),
    (OSError(errno.ENFILE, "Too many open files", "a"), "this machine has too many files open"),
    ("import torch; torch.empty(1 << 45)", "out of memory: "),
    ("bytes(1 << 50)", "out of memory: MemoryError"),
    (RuntimeError("can't start new thread"), "out of memory: can't start new thread"),
]


def test_trouble_of_the_users_inside_a_stage_exits_with_2(vtcli: Vtcli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command makes of each error; that a stage's errors arrive unchanged, the tests before this show."""

    def check(error: Exception | str, words: str) -> None:
        def app() -> None:
            if isinstance(error, str):
                exec(compile(error, "<stage>", "exec"))
            else:
                raise error

        monkeypatch.setattr(main, "app", app)
        done = vtcli()
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr

    assert not failures(TROUBLE, check)


@pytest.mark.parametrize(("place", "lines"), [("0", 1), ("1", 0)])
def test_a_rank_that_is_left_alone_says_so_in_one_line_a_node(
    place: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vtcli.cli.main import _unexpected

    for name, value in (("WORLD_SIZE", "4"), ("RANK", "2"), ("LOCAL_RANK", place)):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("VTCLI_NODE_RANK", raising=False)
    with pytest.raises(SystemExit) as ended:
        _unexpected(RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:12950. This is typically"))
    err = capsys.readouterr().err
    assert ended.value.code == 1
    assert "Traceback" not in err
    assert err.count("another rank of this run has ended, so rank 2 ends too ([pair.cc:553] Connection") == lines


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_is_one_line_and_its_own_code(tmp_path: Path) -> None:
    line = stage_program("print('started', file=sys.stderr, flush=True); time.sleep(60)", tmp_path)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A suite that is started in the background by a shell ignores interrupts, and so would its children.
    with subprocess.Popen(line, cwd=tmp_path, preexec_fn=heed_interrupts, **pipes) as process:
        assert process.stderr
        assert process.stderr.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == "vtcli: interrupted; the same command continues where it stopped.\n"


def test_two_requests_to_end_at_once_are_one(tmp_path: Path) -> None:
    """As a step of Slurm gets them: from Slurm and from the step's srun. What a stage does when it ends is done."""
    body = "try: print('started', flush=True); time.sleep(60)\n"
    body += "    finally: time.sleep(0.5); print('closed', flush=True)"  # not a result: standard error
    line = stage_program(body, tmp_path)
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert process.stderr.readline() == "started\n"
        process.terminate()
        time.sleep(0.1)
        process.terminate()
        lines = process.communicate(timeout=30)[1].splitlines()
        assert lines == ["closed", "vtcli: terminated; the same command continues where it stopped."]
        assert process.returncode == 143


def test_requests_to_end_while_python_closes_change_nothing(tmp_path: Path) -> None:
    """As srun tells a rank that has failed already, and is about to leave."""
    closing = "print('closing', flush=True, file=sys.stderr), time.sleep(0.5), print('closed', file=sys.stderr)"
    body = f"import atexit; atexit.register(lambda: ({closing}));"
    body += "from vtcli.errors import InputError; raise InputError('no such image')"
    line = stage_program(body, tmp_path)
    with subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as process:
        assert process.stderr
        assert "no such image" in process.stderr.readline()
        assert process.stderr.readline() == "closing\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == "closed\n"
        assert process.wait(timeout=30) == 2


MADE = """from pathlib import Path; from vtcli.store.manifest import Artifact, Manifest
    made = Manifest(1, 'charts', 4, 'dataset', '', (), (), {}, 0, '', None, '', 'synth', overrides=('+recipe=codev',))
    return Artifact('charts', 4, Path('artifacts/charts/v4'), made)"""


@pytest.mark.parametrize(
    "noise",
    ["print('a'); import os; os.system('echo b')", pytest.param("import deepspeed", marks=pytest.mark.slow)],  # 6 s
)
def test_what_libraries_print_is_no_result(noise: str, tmp_path: Path) -> None:
    """DeepSpeed logs to standard output, a warning on every machine without a GPU among it."""
    line = stage_program(f"{noise}; {MADE}", tmp_path)
    environ = {key: value for key, value in os.environ.items() if key != "DS_ACCELERATOR"}
    done = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "charts:v4\tartifacts/charts/v4\n"
    assert done.stderr.endswith("vtcli: next: vtcli rl +recipe=codev data=charts:v4\n")
    assert "deepspeed" not in noise or "accelerator" in done.stderr.lower()


def test_artifacts_are_listed_shown_verified_and_traced(vtcli: Vtcli, tmp_path: Path) -> None:
    store = ArtifactStore("artifacts")
    with store.draft("charts", "dataset", config={}, seed=11, fingerprint="f1", stage="synth") as draft:
        (draft.path / "data.bin").write_bytes(b"abc")
        data = draft.commit()
    with store.draft("base", "model", parents=[data], config={}, seed=12, fingerprint="f2", stage="sft") as draft:
        (draft.path / "weights.bin").write_bytes(b"def")
        draft.commit()
    listed = vtcli("artifacts", "ls").stdout
    assert [line.split()[:2] for line in listed.splitlines()] == [["base:v1", "model"], ["charts:v1", "dataset"]]
    assert json.loads(vtcli("artifacts", "show", "base@latest").stdout)["seed"] == 12
    lineage = vtcli("artifacts", "lineage", "base:v1").stdout.splitlines()
    assert lineage[0].startswith("base:v1  model, by sft, seed 12")
    assert lineage[1].startswith("└─ charts:v1  dataset, by synth, seed 11")
    assert vtcli("artifacts", "verify").stdout.split() == ["ok", "base:v1", "ok", "charts:v1"]
    damaged = tmp_path / "artifacts" / "charts" / "v1" / "data.bin"
    damaged.chmod(0o644)
    damaged.write_bytes(b"abd")
    done = vtcli("artifacts", "verify", "charts:v1")
    assert done.returncode == 2
    assert done.stdout.split() == ["wrong", "charts:v1"]
    assert "data.bin" in done.stderr


@pytest.mark.slow
def test_recipes_are_validated_at_every_scale_for_every_stage(vtcli: Vtcli) -> None:
    """One recipe with a variant; tests/config/test_recipes.py composes and binds all."""
    done = vtcli("config", "validate", "codedance")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("configurations compose and bind.")
    assert "wrong" not in done.stdout
    assert "ok     +recipe=codedance scale=tiny variant=code" in done.stdout


def test_a_recipe_may_be_written_as_every_stage_takes_it(vtcli: Vtcli) -> None:
    done = vtcli("config", "validate", "+recipe=toolsr")
    assert done.returncode == 2
    assert "configurations cannot work:\n+recipe=toolsr scale=" in done.stderr
    assert "Did you mean 'toolsrl'?" in done.stderr
    assert "wrong  +recipe=toolsr scale=tiny" in done.stdout


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_home_without_artifacts_says_so_and_a_file_is_none(command: str, vtcli: Vtcli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    empty, file = (vtcli("artifacts", command, "--home", home) for home in ("nowhere", "file"))
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "no artifacts in nowhere" in empty.stderr
    assert (file.returncode, file.stdout) == (2, "")
    assert "Cannot list file: Not a directory" in file.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("artifacts", "show", "a" * 300), "of 300 characters' is not an artifact"),
        (("eval", "data=d:v1", "model=m:v1", "scale=tiny", f"name={'a' * 300}"), "of 300 characters' cannot name an"),
        (("eval", "data=d:v1", "model=m:v1", "scale=tiny", "seed=-1"), "seed: must be at least 0 and at most"),
        (("synth", "scale=tiny", "name=''"), "an artifact: use letters, digits, dots, dashes and underscores"),
        (("synth", "scale=tiny", "name=''"), "set in command line: name=''"),
        (("synth", "scale=tiny", "home="), "home: expected a folder, got ''. Give home=FOLDER or VTCLI_HOME"),
    ],
)
def test_what_cannot_be_a_name_or_a_seed_is_one_sentence(
    argv: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert in_process(argv)[0] == 2
    assert words in capfd.readouterr().err


def test_a_name_too_long_for_a_file_is_one_sentence(vtcli: Vtcli) -> None:
    done = vtcli("judge", "a" * 300, "+recipe=toolsrl", "scale=tiny")
    assert done.returncode == 2
    assert "File name too long; a name may have 255 bytes" in done.stderr
    assert "Traceback" not in done.stderr
