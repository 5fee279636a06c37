#!/usr/bin/env bash
# synth → rl (both phases) at scale=tiny by one command, and a report of its model before, between and after. On two
# cores and without network. Run by `make quickstart`.
# FROM=scratch trains the base model as well; without it the one that comes with vtcli is taken. FULL=1 takes the sizes
# of docs/results.md: 50 steps a phase, 300 questions of each form. SEED=1 makes other data and another run.
# Every step is skipped when its result is there already, so an interrupted quickstart goes on where it was.
set -euo pipefail
SEED=${SEED:-0}
export VTCLI_HOME=${VTCLI_HOME:-artifacts}
export OMP_NUM_THREADS=1 # a rank a core: the model is too small for a second thread to pay
case ${FROM:-} in
    "") shipped=() ;;
    scratch) shipped=(shipped=false) ;;
    *) echo "FROM=$FROM: expected scratch, or nothing for the base model that comes with vtcli" >&2; exit 2 ;;
esac
common=(+recipe=toolsrl scale=tiny "seed=$SEED")
size=(launch.ranks=2)
questions=300
if [ -z "${FULL:-}" ]; then # the gain still shows with its interval
    questions=150
    size+=(rl.steps_per_phase=24 rl.optim.lr=4e-4 rl.checkpoint_every=12)
    for rows in rotflip.train=210 zoom.train=210 read_value.train=120 count.train=60 \
        rotflip.test=60 zoom.test=60 read_value.test=20 count.test=10 \
        rotflip.validation=5 zoom.validation=5 read_value.validation=5 count.validation=5; do
        size+=("data.tasks.$rows")
    done
fi

made() { tail -n 1 | cut -f 1; } # a stage prints what it made: NAME:vN, a tab, its folder

policy=$(vtcli rl "${common[@]}" "${shipped[@]}" "${size[@]}" | made) # makes the data and the base model that it reads

# read_by KIND: the artifact of that kind that the policy was made from
read_by() {
    vtcli artifacts show "$policy" |
        python -c 'import json, sys; print(next(p["ref"] for p in json.load(sys.stdin)["parents"] if p["kind"] == sys.argv[1]))' "$1"
}
data=$(read_by dataset)
base=$(read_by model)

evaluate=(vtcli eval "${common[@]}" eval.agent.sampling.temperature=1.0 "eval.max_samples=$questions" "eval.data=$data")
before=$("${evaluate[@]}" name=report-before eval.label=before "eval.model=$base" | made)
phase1=$("${evaluate[@]}" name=report-phase1 "eval.label=after phase 1" "eval.model=$policy/phases/tools" "eval.baseline=$before" | made)
phase2=$("${evaluate[@]}" name=report "eval.label=after phase 2" "eval.model=$policy" "eval.baseline=$phase1" | made)

echo
echo "report:   $VTCLI_HOME/${phase2/://}/report.html"
echo "lineage:  vtcli artifacts lineage $phase2"
echo "runs:     mlflow ui --backend-store-uri sqlite:///$VTCLI_HOME/mlflow.db"
