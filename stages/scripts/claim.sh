#!/usr/bin/env bash
# A paper's claim in miniature (docs/results.md): for every seed the recipe, and from the same base model, on the same data and
# with the same number of steps the recipe without what the claim is about; all on the same held-out questions.
# Run by `make claim-codev` and its like; SEEDS="3 4" measures others, COMPARE=no the recipe alone. What exists already
# is not made again.
set -euo pipefail
recipe=${1:?which recipe: codev, codevision, codedance, pyvision_image or pyvision_video}
export VTCLI_HOME=${VTCLI_HOME:-artifacts}

made() { tail -n 1 | cut -f 1; } # a stage prints what it made: NAME:vN, a tab, its folder

# LABEL=OVERRIDE: what the recipe is compared with.
case $recipe in
codev) others=("accuracy=rl.phases.0.reward.weights.tool=0") ;;
codevision) others=("no-penalty=rl.phases.0.reward.weights.penalty=0" "no-strategy=rl.phases.0.reward.weights.strategy=0") ;;
codedance) others=("deepeyes=variant=deepeyes") ;;
pyvision_image | pyvision_video) others=("no-bonus=rl.phases.0.reward.per_call=0" "unranked=rl.select.rank=none") ;;
*) echo "claim.sh: no claim is written down for the recipe '$recipe'" >&2 && exit 2 ;;
esac
# PyVision-RL rolls out twice as many as it learns from, and every run of its code draws a figure. One round as in the paper's
# algorithm 1; up to four take twice as long once most groups are all right. Where nearly all are, one round leaves
# six rows to learn from, and they undo what was learnt: two for the video.
size=()
case $recipe in
pyvision_image) size=(rl.prompts_per_step=8 rl.fill.max_rounds=1) ;;
pyvision_video) size=(rl.prompts_per_step=8 rl.fill.max_rounds=2) ;;
esac
[ "${COMPARE:-yes}" = yes ] || others=()

for seed in ${SEEDS:-0 1 2}; do
    common=(scale=tiny "seed=$seed")
    demos=$(vtcli synth "+recipe=tiny_$recipe" "name=$recipe-demos" "${common[@]}" | made)
    data=$(vtcli synth "+recipe=$recipe" "name=$recipe-data" "${common[@]}" | made)
    base=$(vtcli sft "+recipe=tiny_$recipe" "name=$recipe-base" "sft.data=$demos" "${common[@]}" | made)

    train() { vtcli rl "+recipe=$recipe" "rl.data=$data" "rl.model=$base" "${size[@]}" "${common[@]}" "$@" | made; }
    evaluate() { vtcli eval "+recipe=$recipe" eval.agent.sampling.temperature=1.0 "eval.data=$data" "${common[@]}" "$@" | made; }

    before=$(evaluate "name=$recipe-report-before" eval.label=before "eval.model=$base")
    policy=$(train "name=$recipe-policy")
    report=$(evaluate "name=$recipe-report" "eval.label=$recipe" "eval.model=$policy" "eval.baseline=$before")
    for other in "${others[@]}"; do
        label=${other%%=*}
        policy=$(train "name=$recipe-$label" "${other#*=}")
        report=$(evaluate "name=$recipe-report-$label" "eval.label=$label" "eval.model=$policy" "eval.baseline=$report")
    done
    evaluate "name=$recipe-report-no-tools" eval.label=before-no-tools "eval.model=$base" eval.tools=none
    evaluate "name=$recipe-report-oracle" eval.label=oracle "eval.model=$base" eval.policy=oracle
    echo "seed $seed: vtcli artifacts show $report"
done
