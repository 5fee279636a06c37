"""Pages of the papers: their tables are what the recipes compose to."""

from __future__ import annotations

from pathlib import Path

import paper_pages
import pytest

from vtcli.config import compose

PAPERS = ["codedance", "codev", "codevision", "pyvision_image", "toolsrl"]


@pytest.mark.parametrize("page", [p for p in paper_pages.PAGES if p.stem != "README"], ids=lambda p: p.stem)
def test_the_tables_of_a_page_are_its_recipes(page: Path) -> None:
    text = page.read_text()
    assert "<!-- values: " in text and "<!-- variants: " in text
    assert text == paper_pages.filled(text), "write the tables with: python tests/support/paper_pages.py"


def test_a_table_says_what_the_papers_print() -> None:
    """By hand from the papers: ToolsRL 4.1, CodeV 5.1, CodeVision 4.2, CodeDance's table 4, PyVision-RL 3.4."""
    printed = {
        "toolsrl": ("rl.group_size", "16"),
        "codev": ("rl.steps_per_phase", "200"),
        "codevision": ("rl.loss.kl_coef", "0.001"),
        "codedance": ("sft.rows_per_step", "128"),
        "pyvision_image": ("rl.fill.oversample", "2.0"),
    }
    for recipe, (key, value) in printed.items():
        (row,) = (each for each in paper_pages.rows(recipe) if each.key == key)
        assert row.value == value and row.marks[0] == "[P]"


def test_every_choice_of_a_recipe_has_a_source() -> None:
    """Every value that a paper's recipe sets is marked [P], [C] or [I], but for references to other values."""
    for recipe in PAPERS:
        job = compose.load("rl", [f"+recipe={recipe}", "scale=paper"])
        own = {key for key, place in job.origins.items() if place.startswith(f"conf/recipe/{recipe}.yaml:")}
        lines = (paper_pages.ROOT / f"conf/recipe/{recipe}.yaml").read_text().splitlines()
        bare = {
            key
            for key in own
            if not paper_pages.marked(lines[int(job.origins[key].rpartition(":")[2]) - 1])
            and "${" not in lines[int(job.origins[key].rpartition(":")[2]) - 1]
        }
        named = {key for key in bare if key.rpartition(".")[2] in ("_target_", "form", "name", "reference")} | {
            "eval.forms.0"
        } & bare
        assert bare == named, f"{recipe}: values without a source: {sorted(bare - named)}"
