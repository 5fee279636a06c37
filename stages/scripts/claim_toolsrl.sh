#!/usr/bin/env bash
# ToolsRL's claims in miniature (docs/results.md): for every seed the curriculum and, from the same base model and with
# the same number of steps, the answer's reward alone; both against the base model on the same held-out questions.
# Run by `make claim-toolsrl`; SEEDS="3 4" measures others. What exists already is not made again.
set -euo pipefail
export VTCLI_HOME=${VTCLI_HOME:-artifacts}

made() { tail -n 1 | cut -f 1; } # a stage prints what it made: NAME:vN, a tab, its folder

for seed in ${SEEDS:-0 1 2}; do
    common=(scale=tiny "seed=$seed")
    demos=$(vtcli synth +recipe=tiny_base name=demos "${common[@]}" | made)
    data=$(vtcli synth +recipe=toolsrl name=data "${common[@]}" | made)
    base=$(vtcli sft +recipe=tiny_base name=base "sft.data=$demos" "${common[@]}" | made)
    policy=$(vtcli rl +recipe=toolsrl name=policy "rl.data=$data" "rl.model=$base" "${common[@]}" | made)
    alone=$(vtcli rl +recipe=grpo_accuracy name=alone "rl.data=$data" "rl.model=$base" "${common[@]}" | made)

    evaluate() { vtcli eval +recipe=toolsrl eval.agent.sampling.temperature=1.0 "eval.data=$data" "${common[@]}" "$@" | made; }
    before=$(evaluate name=report-before eval.label=before "eval.model=$base")
    phase1=$(evaluate name=report-phase1 "eval.label=after phase 1" "eval.model=$policy/phases/tools" "eval.baseline=$before")
    phase2=$(evaluate name=report "eval.label=after phase 2" "eval.model=$policy" "eval.baseline=$phase1")
    evaluate name=report-alone "eval.label=answer reward alone" "eval.model=$alone" "eval.baseline=$phase2"
    evaluate name=report-no-tools 'eval.label=before without tools' "eval.model=$base" eval.tools=none
    evaluate name=report-phase2-no-tools 'eval.label=after phase 2 without tools' "eval.model=$policy" eval.tools=none
    evaluate name=report-oracle eval.label=oracle "eval.model=$base" eval.policy=oracle
done
