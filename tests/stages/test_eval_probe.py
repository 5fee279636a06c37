"""``vtcli eval probe=causal`` with scripted policies whose answers rest on the tool's picture, or do not."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import coloured_tags
import pytest
import tiny_model
from coloured_tags import TagPolicy
from fakes import native_card

from stages import eval as stage
from tests.support.agents import with_agent
from vtcli.errors import ConfigError, EngineError
from vtcli.probes.causal import CausalProbe, Continuation
from vtcli.rewards import toolsrl
from vtcli.rollout.loop import Limits
from vtcli.schema import EnvTurn, ImageRef, PolicyTurn, Scored
from vtcli.session import session
from vtcli.session.memory import RolloutRecord
from vtcli.signals import answer, faithful, usage
from vtcli.signals import format as format_rule
from vtcli.store import records
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageLimits

PROMPT = {"style": "compact", "system": "{tools}", "tool_question": "{question}", "answer_question": "{question}"}
ALL = ("blank", "noise", "other_crop", "other_image", "true_evidence")
PROBE = CausalProbe(trajectories=9, continuations=1, cut="last", conditions=ALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("probe") / "artifacts"
    coloured_tags.write(home)
    return home


def config(home: Path, name: str, **changes: Any) -> stage.Config:
    fields: dict[str, Any] = {
        "data": "tags:v1",
        "model": str(tiny_model.folder()),
        "prompt": PROMPT,
        "signals": {"answer": answer.measure, "format": format_rule.measure, "usage": usage.measure},
        "metrics": {"faithful": faithful.measure},
        "rewards": {"tool": toolsrl.stage1, "answer": toolsrl.stage2},
        "tool_term": toolsrl.tool_reward,
        "dtype": "float32",
        "env": native_card,
        "forms": ("answer",),
        "limits": Limits(max_turns=3, max_tokens=4000, max_turn_tokens=300, max_images=6),
        "images": ImageLimits(56 * 56, 112 * 112),
        "probe": PROBE,
        "shown": 2,
        "memory": "off",  # each test has a policy of its own under the same weights
    }
    fields |= changes
    job = {"home": str(home), "name": name, "eval": {k: v for k, v in fields.items() if isinstance(v, str | int)}}
    return stage.Config(**with_agent({"temperature": 0.0} | fields), job=job)


Evaluate = Callable[..., tuple[Artifact, TagPolicy]]


@pytest.fixture
def evaluate(home: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Runs the stage with a scripted policy in place of the model."""

    def run(name: str, looks: Callable[[ImageRef], bool], **changes: Any) -> tuple[Artifact, TagPolicy]:
        opened: list[TagPolicy] = []

        def open_policy(engine: Any, family: Any, view: Any, *_: Any) -> TagPolicy:
            opened.append(TagPolicy(family.chat, view, looks))
            return opened[0]

        monkeypatch.setattr(session, "open_policy", open_policy)
        made = stage.run(config(home, name, **changes))
        assert len(opened) == 1  # the model is loaded once for trajectories and continuations
        return made, opened[0]

    return run


def rows_of(made: Artifact) -> list[Continuation]:
    return list(records.read(made.path / "probe.jsonl", Continuation))


def test_a_policy_that_reads_the_picture_rests_on_it(evaluate: Evaluate, capsys: pytest.CaptureFixture[str]) -> None:
    made, policy = evaluate("looker", lambda ref: True)
    summary = made.manifest.summary
    assert summary["answer.all.accuracy"] == 1.0
    for empty in ("blank", "noise", "other_crop"):
        assert summary[f"causal.all.{empty}.accuracy"] == 0.0
        assert summary[f"causal.all.{empty}.difference"] == summary[f"causal.all.{empty}.rests_on"] == 1.0
        assert 0 < summary[f"causal.all.{empty}.difference.low"] < 1.0  # of nine trajectories, not certainty
    assert summary["causal.all.original.accuracy"] == 1.0
    assert summary["causal.all.stored.difference"] == 0.0
    assert (summary["causal.all.true_evidence.accuracy"], summary["causal.all.true_evidence.accuracy.n"]) == (1.0, 6.0)
    assert summary["causal.all.agreement.raw"] == 1.0  # the judge sees the tag in every crop
    told, page = capsys.readouterr().err, (made.path / "report.html").read_text()
    assert (
        "probe: 9 trajectories × original, blank" in told and "51 continuations" in told
    )  # 9 x 6 less 3 without boxes
    for text in (told, page, (made.path / "report.md").read_text()):
        assert "Causal probe: what answers rest on" in text and "judge and probe on faithfulness" in text
    figures = json.loads((made.path / "probe.json").read_text())
    evidence = next(e for e in figures["effects"] if (e["task"], e["condition"]) == ("all", "true_evidence"))
    assert (evidence["sources"], evidence["missing"]) == (6, 3)
    assert (figures["answered"], figures["looked"]) == (9, 9)
    # Every picture has the size of the one that it replaces, and is a conversation of its own for the engine.
    later = [request for request in policy.requests if len(request.images) == 2]
    assert len({request.rollout for request in later}) == len(later) == 9 + 51


def test_a_policy_that_ignores_the_picture_does_not_rest_on_it(evaluate: Evaluate) -> None:
    evaluate("before", lambda ref: True, label="reads")
    made, _ = evaluate("blind", lambda ref: False, baseline="before:v1", label="ignores")
    page = (made.path / "report.md").read_text()
    assert "| all | blank | reads | 9 | 0.000" in page
    assert "| all | blank | ignores | 9 | 1.000" in page
    assert page.index("| all | blank | reads") < page.index("| all | blank | ignores") < page.index("| all | noise")
    summary = made.manifest.summary
    for condition in ALL:
        assert summary[f"causal.all.{condition}.accuracy"] == 1.0
        assert summary[f"causal.all.{condition}.difference"] == 0.0
        assert summary.get(f"causal.all.{condition}.rests_on") == (None if condition == "true_evidence" else 0.0)
    assert summary["causal.all.agreement.raw"] == 0.0  # faithful by the judge, by the probe not


def test_the_claim_follows_from_the_stored_rows(evaluate: Evaluate) -> None:
    """The figures are computed a second time from the file alone, without this package."""
    made, _ = evaluate("half", coloured_tags.half)
    values = [json.loads(line)["value"] for line in (made.path / "probe.jsonl").read_text().splitlines()]
    right: dict[str, dict[str, float]] = defaultdict(dict)
    for value in values:
        assert value["right"] == float(value["answer"] == value["trajectory"]["sample"]["answer"])
        right[value["condition"]][value["source"]] = value["right"]
    for task in ("all", "tag", "spot"):
        ids = [v["source"] for v in values if v["condition"] == "original" and task in ("all", v["task"])]
        for condition in ("blank", "noise", "other_crop"):
            before, after = (sum(right[name][i] for i in ids) for name in ("original", condition))
            found = json.loads((made.path / "probe.json").read_text())["effects"]
            one = next(e for e in found if (e["task"], e["condition"]) == (task, condition))
            assert one["accuracy"]["value"] == pytest.approx(after / len(ids))
            assert one["difference"]["value"] == pytest.approx((before - after) / len(ids))
            assert one["rests"]["value"] == pytest.approx((before - after) / before)
            assert one["difference"]["n"] == len(ids) == one["sources"]
            low, high = one["difference"]["low"], one["difference"]["high"]
            assert low <= one["difference"]["value"] <= high and low < high
    assert 0 < made.manifest.summary["causal.all.blank.difference"] < 1


def test_a_continuation_has_the_stored_ids_and_only_the_picture_differs(evaluate: Evaluate) -> None:
    made, _ = evaluate("exact", lambda ref: True, probe=replace(PROBE, trajectories=3))
    stored = {s.trajectory.id: s.trajectory for s in records.read(made.path / "trajectories.jsonl", Scored)}
    rows = rows_of(made)
    assert {row.task for row in rows} == {"tag", "spot"} and len({row.source for row in rows}) == 3
    assert len({(row.source, row.seed) for row in rows}) == 3  # one seed under all conditions
    for row in rows:
        source, found = stored[row.source], row.trajectory
        assert found.prompt_ids == source.prompt_ids
        cut = next(i for i, turn in enumerate(source.turns) if isinstance(turn, EnvTurn)) + 1
        assert [t.token_ids for t in found.turns[:cut]] == [t.token_ids for t in source.turns[:cut]]
        assert found.images[:1] == source.images[:1]
        before, after = source.images[1], found.images[1]
        assert (after.view_width, after.view_height) == (before.view_width, before.view_height)
        same = row.condition in ("original", "true_evidence")  # the policy had zoomed in on the very evidence
        assert (after.view == before.view) == same
        assert isinstance(found.turns[cut], PolicyTurn)
        for name in {after.full, after.view}:
            assert (made.path / "images" / name[:2] / f"{name}.png").is_file()


def test_an_interrupted_probe_goes_on_with_its_next_continuation(
    evaluate: Evaluate, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = TagPolicy.complete

    async def failing(self: TagPolicy, request: Any) -> Any:
        if sum(len(r.images) == 2 for r in self.requests) >= 9 + 20:
            raise EngineError("the engine is gone")
        return await complete(self, request)

    with monkeypatch.context() as patched:
        patched.setattr(TagPolicy, "complete", failing)
        with pytest.raises(EngineError, match="gone"):
            evaluate("resumed", coloured_tags.half, concurrency=1)
    (path,) = (home / ".work").glob("eval-*/rollouts/*/*.jsonl")
    kept = [line.trajectory for line in records.read(path, RolloutRecord)][9:]
    assert len(kept) == 20
    made, policy = evaluate("resumed", coloured_tags.half)
    assert len(policy.requests) == 51 - 20  # no trajectory and no stored continuation is drawn again
    found = [row.trajectory for row in rows_of(made)]
    assert all(trajectory in found for trajectory in kept)
    assert len({row.key for row in rows_of(made)}) == 51


def drawn(made: Artifact) -> list[tuple[Any, ...]]:
    return [(r.key, r.seed, r.right, r.faithful, [t.token_ids for t in r.trajectory.turns]) for r in rows_of(made)]


def test_the_merge_of_shards_probes_as_one_run_does(evaluate: Evaluate) -> None:
    whole, _ = evaluate("at-once", coloured_tags.half, label="policy")
    shards = [evaluate("parts", coloured_tags.half, label="policy", shard=f"{n}/2") for n in (1, 2)]
    assert not any((made.path / "probe.jsonl").exists() for made, _ in shards)
    assert sum(len(policy.requests) for _, policy in shards) == 2 * 9  # no continuation
    merged, policy = evaluate("parts", coloured_tags.half, label="policy", merge=2)
    assert len(policy.requests) == 51  # the continuations, and no question again
    assert drawn(merged) == drawn(whole)
    assert (merged.path / "probe.json").read_bytes() == (whole.path / "probe.json").read_bytes()
    assert merged.manifest.summary == whole.manifest.summary
    for row in rows_of(merged):
        for name in {name for ref in row.trajectory.images for name in (ref.full, ref.view)}:
            assert (merged.path / "images" / name[:2] / f"{name}.png").is_file()


def test_a_reused_report_prints_the_same_probe(
    evaluate: Evaluate, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the baseline's, too, and without a model."""
    evaluate("parent", coloured_tags.half, label="parent")
    child: dict[str, Any] = {"baseline": "parent:v1", "label": "child"}
    capsys.readouterr()
    made, _ = evaluate("again", lambda ref: True, **child)
    first = capsys.readouterr().err
    monkeypatch.setattr(session, "open_policy", lambda *given: pytest.fail("a model was loaded"))
    assert stage.run(config(home, "again", **child)).ref == made.ref
    again = capsys.readouterr().err
    for title in ("Causal probe: what answers rest on", "Causal probe: judge and probe on faithfulness"):
        assert first[first.index(title) :].splitlines()[:30] == again[again.index(title) :].splitlines()[:30]
    assert again.count("parent") >= 2 and "child" in again


def test_settings_that_cannot_work_are_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"probe\.continuations .*eval\.agent\.sampling\.temperature"):
        config(home, "wrong", probe=replace(PROBE, continuations=2))
    for changes in ({"policy": "oracle"}, {"tools": "none"}, {"forms": ("tool",)}):
        with pytest.raises(ConfigError, match=r"eval\.policy=model, eval\.tools=offered .*\banswer\b"):
            config(home, "wrong", **changes)
