"""Private names of vLLM, found where each release has them: the modules are stand-ins."""

from __future__ import annotations

import sys
import types

import pytest

from vtcli.engines.vllm import compat
from vtcli.errors import EngineError

PARSER = "vllm.utils.argparse_utils"


def install(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """A vLLM that has these modules alone."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = types.ModuleType(".".join(parts[:end]))
            module.__path__ = []
            if module.__name__ not in sys.modules:
                monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules[PARSER], "FlexibleArgumentParser", dict, raising=False)


@pytest.mark.parametrize("name", compat.CLI_ARGUMENTS)
def test_the_command_line_of_both_releases_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    install(monkeypatch, [PARSER, name])
    module, parser = compat.serve_arguments()
    assert (module.__name__, parser) == (name, {})


def test_a_release_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [PARSER, "vllm.entrypoints"])
    with pytest.raises(EngineError, match=r"entrypoints\.common\.cli_args"):
        compat.serve_arguments()


def test_a_module_that_vllm_itself_lacks_is_no_other_release(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [PARSER, "vllm.entrypoints"])

    def lacking(name: str) -> types.ModuleType:
        if name == PARSER:
            return sys.modules[PARSER]
        raise ModuleNotFoundError("No module named 'uvloop'", name="uvloop")

    monkeypatch.setattr(compat.importlib, "import_module", lacking)
    with pytest.raises(ModuleNotFoundError, match="uvloop"):
        compat.serve_arguments()
