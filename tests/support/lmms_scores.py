"""lmms-eval's own scores of replies, in its own environment: cases as JSON on standard input, scores on the output.

A case is ``{"scorer": NAME, "reply": TEXT, "answer": TEXT or a list, …}``. Nothing of vtcli is imported here.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def score(case: dict[str, Any]) -> float:
    """Calls lmms-eval's function for this benchmark with a row in its form."""
    reply, answer = case["reply"], case["answer"]
    match case["scorer"]:
        case "choices":
            from lmms_eval.tasks.vstar_bench.utils import vstar_process_results

            doc = {"text": case["question"], "label": answer, "question_id": 0, "category": "c"}
            return vstar_process_results(doc, [reply])["vstar_overall_acc"]["score"]
        case "relaxed":
            from lmms_eval.tasks.chartqa.utils import relaxed_correctness

            return float(relaxed_correctness(reply, answer))
        case "anls_kits":
            from lmms_eval.api.metrics import anls

            return float(anls(references=answer, predictions=[reply])["anls"])
        case "contains":
            from lmms_eval.tasks.ocrbench.utils import ocrbench_process_results

            doc = {"answer": answer, "dataset": "other", "question_type": "x"}
            return float(ocrbench_process_results(doc, [reply])["ocrbench_accuracy"]["score"])
        case "vsi_kits":
            from lmms_eval.tasks.vsibench.utils import vsibench_process_results

            doc = {"question_type": "object_counting", "ground_truth": answer}
            return float(vsibench_process_results(doc, [reply])["vsibench_overall"]["MRA:.5:.95:.05"])
        case "chartqapro":
            from lmms_eval.tasks.chartqapro.utils import chartqapro_process_results

            kind = "Fact Checking" if case["exact"] else "Factoid"
            doc = {"Answer": [answer], "Question Type": kind, "Year": case["years"]}
            return float(chartqapro_process_results(doc, [reply])["relaxed_overall"])
        case "vqa":
            from lmms_eval.tasks.textvqa.utils import textvqa_process_results

            return float(textvqa_process_results({"answers": list(answer), "question_id": 0}, [reply])["exact_match"])
        case "formula_text":
            from lmms_eval.tasks.ocrbench.utils import ocrbench_process_results

            doc = {"answer": answer, "dataset": "HME100k", "question_type": "x"}
            return float(ocrbench_process_results(doc, [reply])["ocrbench_accuracy"]["score"])
        case _:
            return score_of_benchmark(case)


def score_of_benchmark(case: dict[str, Any]) -> float:
    """The same for the benchmarks with options, counts, tasks or figures of their own."""
    reply, answer = case["reply"], case["answer"]
    match case["scorer"]:
        case "mmmu" | "mmmu_open":
            from lmms_eval.tasks._task_utils import mmmu_mcq_utils
            from lmms_eval.tasks.mmmu.utils import evaluate_mmmu, mmmu_process_results

            mmmu_mcq_utils.random.choice = lambda options: ""  # a reply without an option: wrong, not drawn
            kind = "open" if case["scorer"] == "mmmu_open" else "multiple-choice"
            doc = {
                "id": "validation_Art_1",
                "question_type": kind,
                "answer": answer,
                "options": str(case.get("options")),
            }
            return float(evaluate_mmmu([mmmu_process_results(doc, [reply])["mmmu_acc"]])[1]["acc"])
        case "hrbench":
            from lmms_eval.tasks.hrbench.utils import hrbench_evaluator

            said = hrbench_evaluator.can_infer(reply, dict(zip("ABCD", case["options"], strict=True)))
            return float(said == answer)  # where it finds none it asks a model
        case "mme":
            from lmms_eval.tasks.mme_realworld.utils import extract_characters_regex

            return float(extract_characters_regex(reply) == answer)
        case "vlmblind":
            from lmms_eval.tasks.vlmsareblind.utils import vlmsareblind_process_results

            return vlmsareblind_process_results({"task": case["task"], "groundtruth": answer}, [reply])["accuracy"]
        case "countbench":
            from lmms_eval.tasks.countbench.utils import countbench_process_results

            return countbench_process_results({"number": answer}, [reply])["acc"]
        case "pixmocount":
            from lmms_eval.tasks.pixmo_count.utils import pixmo_count_process_results

            return pixmo_count_process_results({"answer": answer}, [reply])["acc"]
        case "pope":
            from lmms_eval.tasks.pope.utils import pope_process_results

            return pope_process_results({"answer": answer, "question_id": 0}, [reply])["pope_accuracy"]["score"]
        case "wemath":
            return wemath(answer, reply)
        case "vsi_macro":
            from lmms_eval.tasks.vsibench.utils import vsibench_aggregate_results, vsibench_process_results

            docs = [{"question_type": kind, "ground_truth": truth} | {"said": said} for kind, said, truth in answer]
            return float(
                vsibench_aggregate_results(
                    [vsibench_process_results(doc, [doc["said"]])["vsibench_overall"] for doc in docs]
                )
            )
        case other:
            raise ValueError(other)


def wemath(rows: list[tuple[str, str, bool]], reading: str) -> float:
    """We-Math's score in per cent from ``(ID, key, right)``, "Score (Strict)" or "Score (Loose)"."""
    import pandas as pd
    from lmms_eval.tasks.wemath.wemath_utils import (
        calculate_metrics,
        compute_final_scores,
        process_steps_data,
        update_main_results_df,
    )

    table = pd.DataFrame(rows, columns=["ID", "key", "joker"])
    metrics = calculate_metrics(process_steps_data(table, 2), process_steps_data(table, 3))
    return float(update_main_results_df(*compute_final_scores(metrics, 525))[reading].rstrip("%"))


if __name__ == "__main__":
    json.dump([score(case) for case in json.load(sys.stdin)], sys.stdout)
