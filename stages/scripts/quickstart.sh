#!/usr/bin/env bash
# synth → sft → rl (both phases) → eval at scale=tiny, on two cores and without network. Run by `make quickstart`.
# Every step is skipped when its result is there already, so an interrupted quickstart goes on where it was.
set -euo pipefail
SEED=${SEED:-0}
export VTCLI_HOME=${VTCLI_HOME:-artifacts}
common=(scale=tiny "seed=$SEED")

made() { tail -n 1 | cut -f 1; } # a stage prints what it made: NAME:vN, a tab, its folder

# Beside a stage that leaves cores idle, another one can run. Its output goes to files; `ended` prints what it made.
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT # a job in the background does not see Ctrl-C
mkdir -p "$VTCLI_HOME"
beside() { local log=$VTCLI_HOME/.$1; shift; "$@" > "$log.out" 2> "$log.err" & }
ended() { local code=0; wait "$2" || code=$?; ((code == 0)) || { cat "$VTCLI_HOME/.$1.err" >&2; exit "$code"; }; }

demos=$(vtcli synth +recipe=tiny_base name=demos "${common[@]}" | made)
beside data vtcli synth +recipe=toolsrl name=data "${common[@]}" # while sft reads its rows, which takes one core
job=$!
base=$(vtcli sft +recipe=tiny_base name=base "sft.data=$demos" "${common[@]}" | made)
ended data $job
data=$(made < "$VTCLI_HOME/.data.out")

evaluate=(vtcli eval +recipe=toolsrl eval.temperature=1.0 eval.max_samples=300 "eval.data=$data" "${common[@]}")

# The base model is evaluated while RL runs, which leaves half a core idle.
beside before env OMP_NUM_THREADS=1 "${evaluate[@]}" name=report-before eval.label=before "eval.model=$base"
job=$!
policy=$(vtcli rl +recipe=toolsrl name=policy "rl.data=$data" "rl.model=$base" "${common[@]}" | made)
ended before $job
before=$(made < "$VTCLI_HOME/.before.out")

phase1=$("${evaluate[@]}" name=report-phase1 "eval.label=after phase 1" "eval.model=$policy/phases/tools" "eval.baseline=$before" | made)
phase2=$("${evaluate[@]}" name=report "eval.label=after phase 2" "eval.model=$policy" "eval.baseline=$phase1" | made)

echo
echo "report:   $VTCLI_HOME/${phase2/://}/report.html"
echo "lineage:  vtcli artifacts lineage $phase2"
echo "runs:     mlflow ui --backend-store-uri sqlite:///$VTCLI_HOME/mlflow.db"
