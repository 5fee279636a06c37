#!/usr/bin/env bash
# easy-vqa from its package to a report: import → filter by pass rate → a teacher's demonstrations → sft → rl → eval, and
# the same without the filter (docs/maps.md). Run by `make easy-vqa`; SEED=1 is another seed, EASY_VQA the package's
# folder where it lies here already. What exists is not made again, so an interrupted run goes on where it was.
set -euo pipefail
SEED=${SEED:-0}
export VTCLI_HOME=${VTCLI_HOME:-artifacts}
here=$(dirname "$0")
package=${EASY_VQA:-$VTCLI_HOME/easy-vqa}
[ -d "$package/easy_vqa" ] || python -m pip install --quiet --disable-pip-version-check --no-deps --target "$package" easy-vqa==1.0
files=$(realpath "$package")/easy_vqa/data
questions="data.tasks.easy_vqa.generate.path='$files/{split}/questions.json'"
common=(scale=tiny "seed=$SEED" data=easy_vqa)

made() { tail -n 1 | cut -f 1; } # a stage prints what it made: NAME:vN, a tab, its folder

# A model that has seen such pictures, and has never used a tool on one: the tiny base model, after 4 000 answers.
python "$here/easy_vqa_teacher.py" answers "$files" "$VTCLI_HOME/easy-vqa-answers.json" 4000
answers=$(vtcli synth +recipe=toolsrl name=easy-answers "${common[@]}" 'synth.demos={rows: {easy_vqa: {imported: null}}, validation: 0.03}' \
    "data.tasks.easy_vqa.generate.path=$VTCLI_HOME/easy-vqa-answers.json" \
    "+data.tasks.easy_vqa.generate.columns={response: '3'}" "+data.tasks.easy_vqa.generate.reading={root: ['$files/train']}" | made)
shipped=$(python -c 'from vtcli.store.models import SHIPPED; print(SHIPPED / "base" / "v1")')
base=$(vtcli sft +recipe=toolsrl name=easy-base "${common[@]}" "sft.data=$answers" "sft.model=$shipped" sft.epochs=2 | made)

# Questions that it has not seen, and those of them that it answers sometimes: neither always nor never, of eight.
data=$(vtcli synth +recipe=toolsrl name=easy-data "${common[@]}" 'synth.forms=[answer]' \
    data.tasks.easy_vqa.train=2000 data.tasks.easy_vqa.test=500 \
    "$questions" \
    '+data.tasks.easy_vqa.generate.reading.take={train: [20000, null], test: [0, null]}' | made)
mixed=$(vtcli filter +recipe=toolsrl name=easy-mixed "${common[@]}" "data=$data" "model=$base" filter=mixed | made)

rm -f "$VTCLI_HOME/easy-vqa-teacher.port"
python "$here/easy_vqa_teacher.py" serve >"$VTCLI_HOME/easy-vqa-teacher.port" &
trap 'kill %1' EXIT
for _ in {1..300}; do [ -s "$VTCLI_HOME/easy-vqa-teacher.port" ] && break || sleep 0.1; done
[ -s "$VTCLI_HOME/easy-vqa-teacher.port" ] || { echo "easy-vqa: the teacher did not start within 30 s" >&2; exit 1; }
url=http://127.0.0.1:$(cat "$VTCLI_HOME/easy-vqa-teacher.port")/v1

evaluate() { vtcli eval +recipe=grpo_accuracy "${common[@]}" eval.agent.sampling.temperature=1.0 "eval.data=$data" 'eval.forms=[answer]' "$@" | made; }
before=$(evaluate name=easy-report-base eval.label=base "eval.model=$base")

# Both arms have as many rows that the teacher plays, epochs of sft and steps of rl.
for arm in mixed all; do
    rows=$([ $arm = mixed ] && echo "$mixed" || echo "$data")
    demos=$(vtcli synth +recipe=toolsrl "name=easy-demos-$arm" "${common[@]}" "$questions" teacher=endpoint \
        "teacher.url=$url" teacher.model=eyes "synth.distil.data=$rows" synth.distil.rows=800 | made)
    taught=$(vtcli sft +recipe=toolsrl "name=easy-taught-$arm" "${common[@]}" "sft.data=$demos" "sft.model=$base" sft.epochs=3 | made)
    policy=$(vtcli rl +recipe=grpo_accuracy "name=easy-policy-$arm" "${common[@]}" "rl.data=$rows" "rl.model=$taught" \
        rl.steps_per_phase=10 | made)
    sft=$(evaluate "name=easy-report-taught-$arm" "eval.label=sft $arm" "eval.model=$taught" "eval.baseline=$before")
    rl=$(evaluate "name=easy-report-policy-$arm" "eval.label=rl $arm" "eval.model=$policy" "eval.baseline=$sft")
    evaluate "name=easy-report-policy-$arm-no-tools" "eval.label=rl $arm without tools" "eval.model=$policy" eval.tools=none "eval.baseline=$rl"
done
evaluate name=easy-report "eval.label=rl mixed" eval.model=easy-policy-mixed@latest "eval.baseline=$rl"
