#!/usr/bin/env bash
# synth → sft → rl → eval → judge as Slurm jobs, each waiting for those whose results it reads. Run it where sbatch works:
#
#   stages/scripts/pipeline.sh toolsrl scale=tiny
#   MODEL=Qwen/Qwen2.5-VL-7B-Instruct RL_SBATCH="--nodes=4 --gpus-per-node=8 --exclusive" stages/scripts/pipeline.sh toolsrl scale=paper
#
# Overrides go to every stage that knows them: synth.demos.… and sft.… to demonstrations and sft, whose recipe is another, and
# rl.…, eval.… and scoring.… not to these. Variables:
#   NAME     how the artifacts' names begin; the recipe's name unless given. Another one for each of several pipelines at once
#   SHARDS   tasks of the arrays that make data (4)
#   MODEL    what training starts from. Without it (scale=tiny) a model is built, and taught by sft
#   SFT_RECIPE  whose demonstrations come first; at scale=tiny tiny_RECIPE or tiny_base, else none
#   SYNTH_SBATCH, SFT_SBATCH, RL_SBATCH, EVAL_SBATCH, JUDGE_SBATCH   options of sbatch for each stage
set -euo pipefail
stages=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { echo "pipeline.sh: $*" >&2; exit 2; }

recipe=${1:?which recipe: one of conf/recipe, say toolsrl}
shift
type -P sbatch > /dev/null || fail "there is no sbatch here: run this where jobs are submitted"
for override in "$@"; do
    case ${override#+} in
    name=* | model=* | data=* | recipe=* | sft.data=* | rl.data=* | rl.model=* | eval.data=* | eval.model=*)
        fail "$override: the pipeline says this to each stage itself; NAME= and MODEL= are its variables" ;;
    esac
done
scale=$(printf '%s\n' "$@" | sed -n 's/^+\{0,1\}scale=//p')
[ -n "$scale" ] || fail "say scale=tiny, gpu, node or paper: where jobs run is not where they are submitted"

name=${NAME:-$recipe} shards=${SHARDS:-4} model=${MODEL-}
for conf in "$stages/../conf" "$stages/../vtcli/conf"; do [ ! -d "$conf/recipe" ] || break; done # of a checkout, of a wheel
taught=${SFT_RECIPE-$([ "$scale" != tiny ] || { [ -e "$conf/recipe/tiny_$recipe.yaml" ] && echo "tiny_$recipe" || echo tiny_base; })}
[ -n "$model$taught" ] || fail "say with MODEL= which model to start from, or with SFT_RECIPE= whose demonstrations to build one on"

jobs=()
# submit WAITS_FOR "SBATCH-OPTIONS" SCRIPT OVERRIDES…: its number, in $job
submit() {
    local after=$1 script=$3 options
    read -ra options <<< "$2"
    shift 3
    job=$(sbatch --parsable --kill-on-invalid-dep=yes ${after:+--dependency=afterok:$after} "${options[@]}" \
        "$stages/slurm/$script.sbatch" "$@" "${overrides[@]}")
    job=${job%%;*} # with the cluster's name where there are several
    jobs+=("$job")
    printf '%-8s %-12s %s%s\n' "$job" "$script" "$*" "${after:+   after $after}"
}
trap '(($? == 0 || ${#jobs[@]} == 0)) || scancel "${jobs[@]}"' EXIT # all or none

own=() taughts=()
for override in "$@"; do
    case ${override#+} in
    rl.* | eval.* | scoring.*) own+=("$override") ;;
    synth.demos.* | sft.*) taughts+=("$override") ;;
    *) own+=("$override") taughts+=("$override") ;;
    esac
done

data() { # RECIPE NAME: made in shards and put together
    submit "" "--array=1-$shards ${SYNTH_SBATCH-}" synth "+recipe=$1" "name=$2"
    submit "$job" "${SYNTH_SBATCH-}" synth_merge "+recipe=$1" "name=$2" "synth.merge=$shards"
}

overrides=("${own[@]}")
data "$recipe" "$name-data"
ready=$job
if [ -n "$taught" ]; then
    overrides=("${taughts[@]}")
    data "$taught" "$name-demos"
    submit "$job" "${SFT_SBATCH-}" sft "+recipe=$taught" "name=$name-base" "sft.data=$name-demos@latest" ${model:+"sft.model=$model"}
    overrides=("${own[@]}")
    model=$name-base@latest ready+=:$job
fi
evaluate=("+recipe=$recipe" "eval.data=$name-data@latest")
submit "$ready" "${EVAL_SBATCH-}" eval "${evaluate[@]}" "name=$name-report-before" eval.label=before "eval.model=$model"
before=$job
submit "$ready" "${RL_SBATCH-}" rl "+recipe=$recipe" "name=$name-policy" "rl.data=$name-data@latest" "rl.model=$model"
submit "$before:$job" "${EVAL_SBATCH-}" eval "${evaluate[@]}" "name=$name-report" eval.label=after "eval.model=$name-policy@latest" \
    "eval.baseline=$name-report-before@latest"
submit "$job" "${JUDGE_SBATCH-}" judge "$name-report@latest" "+recipe=$recipe" "name=$name-scores"

echo
echo "watch:   squeue --me          stop:   scancel ${jobs[*]}"
echo "output:  vtcli-*.out here     report: vtcli artifacts show $name-report@latest"
