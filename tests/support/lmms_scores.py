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
        case other:
            raise ValueError(other)


if __name__ == "__main__":
    json.dump([score(case) for case in json.load(sys.stdin)], sys.stdout)
