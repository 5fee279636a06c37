#!/usr/bin/env bash
# A Slurm cluster on this machine, for the tests: munged, slurmctld and slurmd with their own configuration, free ports and
# all files below one folder. No systemd, no database, no cgroups; root is needed for `install` only.
#
#   tests/support/slurm_node.sh install        the Debian packages, unless they are there
#   tests/support/slurm_node.sh start [DIR]    starts it; `export SLURM_CONF=DIR/slurm.conf` makes sinfo, sbatch and srun find it
#   tests/support/slurm_node.sh stop [DIR]     cancels its jobs, ends its processes, removes DIR
#
# Partition `work` (default) is preempted by partition `urgent`: its jobs are requeued. CPUS=4 pretends so many cores.
# NODES=2 pretends so many nodes, each by a slurmd of its own, and GPUS=2 so many GPUs on each: files that nothing opens.
set -Eeuo pipefail
PATH=$PATH:/usr/sbin:/sbin
WAIT_S=${WAIT_S:-60} # for the node to be idle, and for each process to end
dir=${2:-${TMPDIR:-/tmp}/vtcli-slurm-$(id -u)}

fail() { echo "slurm_node.sh: $*" >&2; exit 2; }

missing() { for program in munged slurmctld slurmd sbatch srun scontrol; do type -P "$program" > /dev/null || echo "$program"; done; }

install() {
    [ -n "$(missing)" ] || return 0
    type -P apt-get > /dev/null || fail "there is no $(missing | xargs), and without apt-get (Debian, Ubuntu) you have to install Slurm and munge yourself"
    local sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    ${sudo:-true} true || fail "installing slurm-wlm and munge needs root: run \`sudo $0 install\` once, everything else works without"
    $sudo apt-get update -qq
    # Their own services are not started: RUNLEVEL=1 makes invoke-rc.d leave them alone.
    $sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends slurm-wlm munge
}

# So many TCP ports that nobody listens on.
free_ports() {
    python3 -c 'import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in held: one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in held))' "$1"
}

# The nodes: one has the name of this machine.
names() { if ((${NODES:-1} == 1)); then hostname -s; else seq -f "vtnode%g" "$NODES"; fi; }

configure() {
    local nodes=()
    local cpus=${CPUS:-$(nproc)} count=${NODES:-1} gpus=${GPUS:-0} host ports n
    host=$(hostname -s)
    read -ra ports <<< "$(free_ports $((1 + count)))"
    cat > "$dir/slurm.conf" << CONF
ClusterName=vtcli
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5
SlurmdParameters=config_overrides
ReturnToService=2
MessageTimeout=60
KillWait=30
MinJobAge=3600
PartitionName=work Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE MaxTime=120 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=120 State=UP
CONF
    ((gpus == 0)) || echo "GresTypes=gpu" >> "$dir/slurm.conf"
    for n in $(names); do
        echo "NodeName=$n NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[$((${#nodes[@]} + 1))]} CPUs=$((cpus < 2 ? 2 : cpus))" \
            "$( ((gpus == 0)) || echo "Gres=gpu:$gpus") State=UNKNOWN" >> "$dir/slurm.conf"
        nodes+=("$n")
    done
    for ((n = 0; n < gpus; n++)); do
        ln -s /dev/null "$dir/gpu$n" # slurmd wants a device
        echo "Name=gpu File=$dir/gpu$n" >> "$dir/gres.conf"
    done
}

start() {
    local node
    [ -z "$(missing)" ] || fail "there is no $(missing | xargs): run \`$0 install\` first"
    [ ! -e "$dir" ] || fail "$dir is there already: a cluster may run in it, \`$0 stop $dir\` ends it"
    ((${#dir} < 80)) || fail "$dir: choose a shorter path, sockets lie below it"
    mkdir -m 755 -p "$dir" "$dir/state"
    dir=$(cd "$dir" && pwd)
    export SLURM_CONF=$dir/slurm.conf
    configure
    trap 'tail -n 5 "$dir"/*.log >&2; stop; fail "the cluster did not start"' ERR
    (umask 077 && head -c 1024 /dev/urandom > "$dir/munge.key")
    # --force: a socket below a folder that others may write to (/tmp) is a warning, not an error
    munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
        --log-file="$dir/munged.log" --seed-file="$dir/munge.seed" --num-threads=2 2> "$dir/munged.err"
    slurmctld -f "$SLURM_CONF" -c
    for node in $(names); do slurmd -f "$SLURM_CONF" -N "$node"; done
    local deadline=$((SECONDS + WAIT_S))
    until [ "$(sinfo -h -p work -o "%t %D" 2> /dev/null)" = "idle ${NODES:-1}" ]; do
        ((SECONDS < deadline)) || { sinfo -R >&2 || true; false; }
        sleep 0.2
    done
    echo "export SLURM_CONF=$SLURM_CONF"
}

# Waits for a process to be gone, then makes sure.
end() {
    local pid deadline=$((SECONDS + WAIT_S))
    pid=$(cat "$1" 2> /dev/null) || return 0
    kill "$pid" 2> /dev/null || return 0
    while kill -0 "$pid" 2> /dev/null; do
        ((SECONDS < deadline)) || { kill -KILL "$pid" 2> /dev/null || true; break; }
        sleep 0.1
    done
}

stop() {
    trap - ERR
    [ -f "$dir/slurm.conf" ] || { echo "no cluster in $dir" >&2; return 0; }
    export SLURM_CONF=$dir/slurm.conf
    local deadline=$((SECONDS + WAIT_S))
    if timeout 10 scontrol ping > /dev/null 2>&1; then
        timeout 10 scancel --user="$(id -un)" || true
        while [ -n "$(timeout 10 squeue -h || true)" ] && ((SECONDS < deadline)); do sleep 0.2; done
    fi
    for file in "$dir"/slurmd-*.pid; do end "$file"; done
    end "$dir/slurmctld.pid"
    end "$dir/munged.pid"
    rm -rf "$dir"
}

case ${1:-} in
install | start | stop) "$1" ;;
*) fail "expected install, start or stop, got '${1:-}'" ;;
esac
