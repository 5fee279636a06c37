"""The scorers by name: what a truth's ``rule`` and a benchmark's ``scores`` may say."""

from __future__ import annotations

from collections.abc import Mapping

from vtcli.signals.scorers import by_task, formulas, letters, lists, numerals, texts, yes_no
from vtcli.signals.scorers.grade import Scorer

SCORERS: Mapping[str, Scorer] = {
    "exact": letters.exact,
    "choices": letters.choices,
    "anls": texts.similar,
    "anls_kits": texts.similar_kits,
    "vqa": texts.vqa,
    "contains": texts.contained,
    "relaxed": numerals.relaxed_accuracy,
    "integer": numerals.integer,
    "integer_inside": numerals.counted_inside,
    "vsi": numerals.vsi,
    "vsi_kits": numerals.vsi_kits,
    "yes_no": yes_no.yes_no,
    "pope": yes_no.pope,
    "chartqapro": lists.chartqapro,
    "denotation": lists.denotation,
    "true_false": lists.verified,
    "formula": formulas.formula,
    "mathvista": formulas.mathvista,
    "dynamath": formulas.dynamath,
    "mmmu": formulas.mmmu,
    "vlmblind": by_task.vlmblind,
    "vlmblind_kit": by_task.vlmblind_kit,
    "tablevqa": by_task.tablevqa,
    "letter_set": by_task.letter_set,
    "tir": by_task.tir,
}
