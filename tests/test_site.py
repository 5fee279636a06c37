"""`make docs` builds the pages as a site: no link, anchor or page is lost, and the references are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / ".ci/mkdocs.yml")]
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for name, text in {
        "index.html": "Sixty seconds",
        "reference/keys.html": "<code>rl.group_size</code>",
        "reference/choices.html": "<code>vllm_server</code>",
        "reference/signals.html": "<code>answer_score</code>",
        "reference/python.html": "vtcli.schema.Sample",
        "reference/values-codev.html": "<code>rl.phases.0.reward.weights.tool</code>",
    }.items():
        assert text in (tmp_path / name).read_text(), name
