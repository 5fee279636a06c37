"""Figures of benchmarks worked by hand, their intervals, and the printed numbers beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from benchmark_copies import shipped
from cases import each_case
from fakes import make_sample, make_trajectory

from vtcli.benchmarks import aggregates, results
from vtcli.benchmarks.aggregates import Figure, GradedAnswer
from vtcli.benchmarks.benchmark import Benchmark, PublishedRow
from vtcli.errors import InputError
from vtcli.report import printing, published
from vtcli.schema import Scored, Signals, Stop
from vtcli.statistics.metrics import wilson

SETTING = results.RunSetting("policy:v1", "Qwen2.5-VL-72B", "T 0, 1 a question, 6 turns")

ORACLE = replace(SETTING, judge="oracle")


def outcomes(*rows: tuple[float, dict[str, Any]], text: str = "", answer: str = "") -> list[GradedAnswer]:
    return [GradedAnswer(str(n), str(n), score, text, answer, truth) for n, (score, truth) in enumerate(rows)]


def values(figures: list[Figure]) -> dict[str, float]:
    return {f.name: round(float(f.statistic(f.terms.sum(axis=0, keepdims=True))[0]), 4) for f in figures}


def test_micro_and_macro_differ() -> None:
    """V*: 3 of 4 attributes and 0 of 1 spatial are 60 % micro and 37.5 % macro."""
    rows = [(1.0, {"c": "a"})] * 3 + [(0.0, {"c": "a"}), (0.0, {"c": "s"})]
    found = values(aggregates.by(outcomes(*rows), key="c", macro=True))
    assert found == {"all": 0.6, "a": 0.75, "s": 0.0, "macro": 0.375}


def test_vsi_takes_three_difficulties_as_one_task() -> None:
    easy, hard, size = ({"t": name} for name in ("dir_easy", "dir_hard", "size"))
    merge = {"dir_easy": "direction", "dir_hard": "direction"}
    found = values(
        aggregates.by(outcomes((1, easy), (1, easy), (0, hard), (0.4, size)), key="t", merge=merge, macro=True)
    )
    assert found == {"all": 0.6, "direction": 0.5, "size": 0.4, "macro": 0.45}


def test_hrbench_is_the_mean_over_orders_and_not_all_four() -> None:
    rows = [(float(n > 0), {"category": "single", "image": "x"}) for n in range(4)]
    rows += [(1.0, {"category": "cross", "image": "y"})] * 4
    names = {"single": "FSP", "cross": "FCP"}
    found = values(aggregates.cyclic(outcomes(*rows), key="category", names=names, item="image"))
    assert found == {"all": 0.875, "FSP": 0.75, "FCP": 1.0, "all orders": 0.5}


def test_dynamath_worst_case() -> None:
    rows = [(1.0, {"s": 1}), (0.0, {"s": 1}), (1.0, {"s": 2}), (1.0, {"s": 2})]
    assert values(aggregates.worst_case(outcomes(*rows), item="s")) == {"all": 0.75, "worst": 0.5}


def test_items_count_whole_and_once_however_often_they_are_asked() -> None:
    """Two variants, one right always and one in one of two rollouts: 0.5. Half an item says nothing about the other."""
    half = [GradedAnswer(row, "1", score, "", "", {"s": 1}) for row, score in (("a", 1), ("a", 1), ("b", 0), ("b", 1))]
    alone = [GradedAnswer("c", "2", 1.0, "", "", {"s": 2})]
    found = aggregates.worst_case([*half, *alone], item="s", variants=2)
    assert values(found) == {"all": 0.8, "worst": 0.5}
    assert [f.count for f in found] == [5, 1]
    benchmarks = shipped()
    orders = "all orders", 4
    for name, (title, count) in {"dynamath": ("worst", 10), "hrbench_4k": orders, "hrbench_8k": orders}.items():
        rows = [(1.0, {"seed": 1, "image": "x", "category": "single"})] * count
        some = [values(list(benchmarks[name].aggregate(outcomes(*asked))))[title] for asked in (rows, rows[1:])]
        assert some == pytest.approx([1.0, math.nan], nan_ok=True)


def test_wemath_takes_every_rollout() -> None:
    """Steps are right always, the composite in one of two rollouts: half of CM and half of IG, 0.75 in any order."""
    steps = [(1.0, {"item": 1, "step": f"2steps_{n}"}) for n in (1, 2)]
    for order in ((1.0, 0.0), (0.0, 1.0)):
        whole = [GradedAnswer("multi", "1", score, "", "", {"item": 1, "step": "2steps_multi"}) for score in order]
        found = aggregates.wemath([*outcomes(*steps), *whole])
        assert values(found) == {"strict": 0.75, "loose": 0.75, "rote": 0.0, "all": 0.75, "broken": 0.0}


def test_pope() -> None:
    """Yes to three of four: two of them true (precision 2/3), one true left out (recall 2/3)."""
    said = [("Yes", "yes"), ("yes.", "yes"), ("Yes, there is", "no"), ("No", "yes")]
    rows = [
        GradedAnswer(str(n), str(n), float(a.lower()[0] == b[0]), a, b, {"category": "random"})
        for n, (a, b) in enumerate(said)
    ]
    found = values(aggregates.pope(rows))
    assert found == {"all": 0.5, "random": 0.5, "precision": 0.6667, "recall": 0.6667, "F1": 0.6667, "yes": 0.75}
    # POPE's own reading of an empty text is yes.
    none = [
        GradedAnswer(str(n), str(n), float(b == "yes"), "", b, {"category": "random"})
        for n, b in enumerate(("yes", "no"))
    ]
    found = values(aggregates.pope([*rows, *none]))  # one yes more is missed, and no yes is said
    assert found == {"all": 0.3333, "random": 0.3333, "precision": 0.6667, "recall": 0.5, "F1": 0.5714, "yes": 0.5}


@each_case("prefix", ["2steps_", ""])  # the released data and VLMEvalKit; our note
def test_wemath_by_its_formula(prefix: str) -> None:
    """(CM + IG / 2) / N: one complete mastery, one inadequate generalisation, one rote: strict 1.5 of 3, loose 2.5."""

    def composite(item: int, first: int, second: int, whole: int) -> list[tuple[float, dict[str, Any]]]:
        steps = {"2steps_1": first, "2steps_2": second, f"{prefix}multi": whole}
        return [(float(score), {"item": item, "step": step}) for step, score in steps.items()]

    rows = [*composite(1, 1, 1, 1), *composite(2, 1, 1, 0), *composite(3, 1, 0, 1), (1.0, {"item": 4, "step": "multi"})]
    found = values(aggregates.wemath(outcomes(*rows)))
    assert (found["strict"], found["loose"], found["rote"]) == (0.5, 0.8333, 0.5)
    assert found["broken"] == 0.25  # item 4 has no steps


def test_wemaths_ids_occur_with_two_and_with_three_steps() -> None:
    """VLMEvalKit ``utils/wemath.py`` splits the rows by steps before it joins them by id."""
    keys = ("2steps_1", "2steps_2", "2steps_multi", "3steps_1", "3steps_2", "3steps_3", "3steps_multi")
    rows = [(float(key != "3steps_2"), {"item": 1, "step": key}) for key in keys]
    found = values(aggregates.wemath(outcomes(*rows)))
    assert (found["strict"], found["loose"], found["rote"], found["broken"]) == (0.5, 1.0, 0.5, 0.0)
    alone = values(aggregates.wemath(outcomes(*rows[:-1])))
    assert (alone["strict"], alone["broken"]) == (1.0, 0.5)
    with pytest.raises(InputError, match="is 'two'; expected"):
        aggregates.wemath(outcomes((1.0, {"item": 1, "step": "two"})))


def scored(number: int, reply: str | None, *, broken: bool = False, **signals: Any) -> Scored:
    options = ["red", "blue"]
    sample = make_sample(
        id=f"vstar-{number}", task="vstar", question="Which?\nA. red\nB. blue", answer="blue",
        truth={"choices": options, "category": "direct_attributes", "rule": "choices"},
    )  # fmt: skip
    trajectory = make_trajectory(sample, ["<think>no answer</think>" if reply is None else f"<answer>{reply}</answer>"])
    return Scored(replace(trajectory, stop=Stop.BROKEN) if broken else trajectory, Signals(signals), None)


def measured(benchmark: Benchmark) -> results.BenchmarkResult:
    replies: list[str | None] = ["B", "(b)", "blue", "A", "who knows", None]
    found = [scored(n, reply, answer_correct=1) for n, reply in enumerate(replies)] + [scored(9, "B", broken=True)]
    result = results.result("vstar", benchmark, found, SETTING, seed=0)
    assert result is not None
    return result


def test_stored_trajectories_are_scored_again_by_the_rule_alone() -> None:
    result = measured(shipped()["vstar"])
    first = result.figures[0]
    assert (first.score, first.name, first.answers) == ("choices", "all", 6)
    assert first.estimate == wilson(3, 6)
    assert (result.questions, result.broken, result.unanswered, result.unread) == (7, 1, 1, 1)


def test_a_rule_and_a_judge_are_two_measures() -> None:
    result = measured(replace(shipped()["vstar"], judged=True))
    found = {(f.score, f.name): f.estimate.value for f in result.figures}
    assert (found["choices", "all"], found["judged", "all"]) == (0.5, 1.0)


def test_right_and_faithful_over_all_stands_beside_table_5_of_codev() -> None:
    """Right answers with a crop that shows it and without one, a wrong one with such a crop, two without a verdict, and
    one that was not measured: 1 of 4."""
    seen: list[dict[str, Any]] = [{"faithful": 1}, {"faithful": 0}, {"faithful": 1}]
    seen += [{"unjudged": ["faithful"]}, {"unjudged": ["faithful"]}, {"faithful": None}]
    replies = ["B", "B", "A", "B", "A", "B"]
    found = [scored(n, reply, **signals) for n, (reply, signals) in enumerate(zip(replies, seen, strict=True))]
    benchmark = shipped()["vstar"]
    result = results.result("vstar", benchmark, found, SETTING, seed=0)
    assert result is not None
    last = result.figures[-1]
    assert (last.name, last.score, last.answers, last.estimate) == ("faithful", "judged", 4, wilson(1, 4))
    table = published.table({"vstar": result}, {"vstar": benchmark})
    assert table is not None
    text = printing.to_markdown(table)
    assert "| 68 | CodeV, table 5: CodeV-7B-RL |" in text
    assert "scored by judged (Qwen2.5-VL-72B) / rule, and GPT-4o" in text
    bare = results.result("vstar", benchmark, [scored(1, "B")], SETTING, seed=0)  # nobody asked what a tool showed
    assert bare is not None and "faithful" not in {figure.name for figure in bare.figures}


def test_the_oracle_is_no_judge() -> None:
    benchmark = replace(shipped()["vstar"], judged=True)
    result = results.result("vstar", benchmark, [scored(1, "B", answer_correct=1)], ORACLE, seed=0)
    assert result is not None and {f.score for f in result.figures} == {"choices"}
    table = published.table({"vstar": result}, {"vstar": benchmark})
    assert table is not None and table.note.endswith("No judge was asked (judge=oracle) for V*: only rules.")


def test_rows_of_one_cluster_are_drawn_together() -> None:
    benchmark = replace(shipped()["vstar"], cluster="category")
    result = results.result("vstar", benchmark, [scored(n, "B") for n in range(4)], SETTING, seed=0)
    assert result is not None
    assert result.figures[0].estimate.n == 1 and result.figures[0].estimate.low is None


def test_the_number_of_clusters_is_that_of_the_figure() -> None:
    """Forty questions in two orders each, ten of them of category a."""
    truths = [{"category": "a" if n < 10 else "b"} for n in range(40)]
    answers = [GradedAnswer(f"{n}-{k}", str(n), n % 2, "", "", truth) for n, truth in enumerate(truths) for k in (0, 1)]
    found = results.figures_of("hrbench", "choices", aggregates.by(answers, key="category"), answers, seed=0)
    assert {f.name: (f.estimate.n, f.answers) for f in found} == {"all": (40, 80), "a": (10, 20), "b": (30, 60)}


def test_clusters_that_are_all_the_same_have_no_interval() -> None:
    result = results.result("vstar", shipped()["vstar"], [scored(n, "A") for n in range(4)], SETTING, seed=0)
    assert result is not None
    bounds = {f.name: (f.estimate.low, f.estimate.high) for f in result.figures}
    assert bounds["macro"] == (None, None) and bounds["all"] == (0.0, pytest.approx(0.49, abs=0.01))


def test_a_printed_number_never_stands_alone() -> None:
    benchmark = shipped()["vstar"]
    result = measured(benchmark)
    table = published.table({"vstar": result}, {"vstar": benchmark})
    assert table is not None
    text = printing.to_markdown(table)
    assert "| V* | all | choices | 50.0 [18.8, 81.2] | 84.8 | CodeV, table 3: CodeV-7B-RL |" in text
    assert "model policy:v1 / PyVision-Image; scored by rule choices / not stated" in text
    assert "decoding T 0, 1 a question, 6 turns / T 0.01, avg@32, 30 turns, 32K tokens; 7 of 191 questions" in text
    assert "V*: 7 of 191 questions, 1 rollouts broke, 1 without an answer (wrong), 1 whose answer" in table.note
    assert "PyVision-RL, table 3: PyVision-Image-SFT" in text
    drawn = replace(benchmark, published=(replace(benchmark.published[0], table="figure 4"),))
    table = published.table({"vstar": result}, {"vstar": drawn})
    assert table is not None and "| CodeV, figure 4: Qwen2.5-VL-7B |" in printing.to_markdown(table)
    papers = results.plain(result, benchmark)["figures"][0]["published"]
    assert {"paper", "table", "model", "printed", "scored", "differs"} == set(papers[0])


PRINTED = (
    PublishedRow("A", "1", "by-rule", {"all": 77.3}, scored="ANLS"),
    PublishedRow("A", "1", "by-judge", {"all": 46.5}, scored="Qwen2.5-VL-72B as a judge"),
    PublishedRow("B", "2", "silent", {"all": 60.0}),
)


def placed(benchmark: Benchmark, setting: results.RunSetting) -> dict[str, list[str]]:
    """Models of the printed rows beside the figure "all" of each score."""
    result = results.result("vstar", benchmark, [scored(1, "B", answer_correct=1)], setting, seed=0)
    assert result is not None
    found: dict[str, list[str]] = {}
    for figure, paper in results.beside(result, benchmark):
        if figure.name == "all":
            found.setdefault(figure.score, []).extend([paper.model] if paper else [])
    return found


def test_a_printed_row_stands_beside_the_score_that_it_was_scored_by() -> None:
    benchmark = replace(shipped()["vstar"], judged=True, scores=("choices", "exact"), published=PRINTED)
    rules = ["by-rule", "silent"]
    assert placed(benchmark, SETTING) == {"choices": rules, "exact": rules, "judged": ["by-judge"]}


def test_without_a_judge_its_rows_stand_beside_the_rules_figures_and_say_so() -> None:
    benchmark = replace(shipped()["vstar"], judged=True, published=PRINTED)
    assert placed(benchmark, ORACLE) == {"choices": ["by-rule", "by-judge", "silent"]}
    result = results.result("vstar", benchmark, [scored(1, "B")], ORACLE, seed=0)
    assert result is not None
    (judged,) = (p for p in results.plain(result, benchmark)["figures"][0]["published"] if p["model"] == "by-judge")
    assert judged["scored"] == "Qwen2.5-VL-72B as a judge"
    assert "scored by rule choices / Qwen2.5-VL-72B as a judge" in judged["differs"]


def test_a_figure_whose_rows_stand_elsewhere_says_no_paper_prints_it_by_this_score() -> None:
    benchmark = replace(shipped()["vstar"], judged=True, published=PRINTED[1:2])
    result = results.result("vstar", benchmark, [scored(1, "B", answer_correct=1)], SETTING, seed=0)
    assert result is not None
    table = published.table({"vstar": result}, {"vstar": benchmark})
    assert table is not None
    lines = [line for line in table.lines if line[1].text == "all"]
    assert [(line[2].text, line[4].text) for line in lines] == [("choices", "–"), ("judged", "46.5")]
    assert "by this score" in lines[0][4].hint
