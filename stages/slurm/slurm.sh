# Sourced by the *.sbatch files beside it: runs a stage in a step of this job. A time limit costs what was done since the last
# checkpoint: the stage is told to end, the job requeues itself, and the same command continues. docs/slurm.md says more.

fail() { echo "${SLURM_JOB_NAME:-slurm.sh}: $*" >&2; exit 2; }

stages=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
type -P vtcli > /dev/null || PATH=$stages/../.venv/bin:$PATH # as `make setup` leaves it
type -P vtcli > /dev/null || fail "there is no vtcli in PATH on $(hostname): activate its environment and submit again"
for variable in SLURM_JOB_NUM_NODES SLURM_CPUS_ON_NODE; do
    [ -n "${!variable-}" ] || fail "$variable is not set, which Slurm does for a batch script: submit this with sbatch"
done

# As scontrol wants it: the number of an array's last task is that of the whole array, too.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID-}}
job=${job:-$SLURM_JOB_ID}

# One process, with all cores of the first node.
alone() { step --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" vtcli "$@"; }

# SHARDS, the number of shards of which this task of an array makes one.
shards_of_array() {
    [ -n "${SLURM_ARRAY_TASK_ID-}" ] || fail "no array (SLURM_ARRAY_TASK_ID): submit it with --array=1-16 or the like"
    if [ -z "${SHARDS-}" ]; then
        ((SLURM_ARRAY_TASK_MIN == 1 && SLURM_ARRAY_TASK_COUNT == SLURM_ARRAY_TASK_MAX)) ||
            fail "the array is not 1-N: to make some of the shards only, say with SHARDS=16 how many there are in all"
    fi
    SHARDS=${SHARDS:-$SLURM_ARRAY_TASK_MAX}
}

# A process for each GPU of each node; --ntasks-per-node=N makes it N. They find each other by what srun tells them.
in_ranks() {
    local per_node=${SLURM_NTASKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}} crowd=()
    local cores=$((SLURM_CPUS_ON_NODE / per_node))
    if ((cores == 0)); then
        echo "$SLURM_JOB_NAME: $per_node processes of a node share $SLURM_CPUS_ON_NODE of its cores: ask for more, say --cpus-per-task=8" >&2
        cores=1 crowd=(--overcommit)
    fi
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$cores}
    # When one ends badly the others would wait for it.
    step --nodes="$SLURM_JOB_NUM_NODES" --ntasks=$((SLURM_JOB_NUM_NODES * per_node)) --ntasks-per-node="$per_node" \
        --cpus-per-task="$cores" --kill-on-bad-exit=1 "${crowd[@]}" vtcli "$@"
}

# USR1 says that time is nearly over (--signal above). TERM is scancel or a preemption, which Slurm tells the step as well:
# the script waits for it, and in a preemption Slurm requeues by itself.
step() {
    local code pid over="" interrupted=""
    trap 'interrupted=yes over=yes; scancel --signal=TERM "$job"' USR1 # the step, not this script
    trap 'interrupted=yes' TERM
    srun "$@" &
    pid=$!
    while :; do
        code=0 interrupted=""
        wait "$pid" || code=$?
        [ -n "$interrupted" ] || break
    done
    ((code == 0 || code == 2)) || [ -z "$over" ] || requeue
    exit "$code"
}

requeue() {
    local most=${VTCLI_MAX_REQUEUES:-100}
    ((${SLURM_RESTART_COUNT:-0} < most)) || fail "the time limit was reached $most times (VTCLI_MAX_REQUEUES): submit again for more"
    echo "$SLURM_JOB_NAME: time is over, job $job continues when it is started again" >&2
    scontrol requeue "$job" || fail "Slurm does not requeue job $job here: submit the same again, it continues where it stopped"
    exit 0
}
