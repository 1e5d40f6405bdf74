#!/usr/bin/env bash
# Guess: a job with whole nodes that requests no GRES expands on a cluster with GRES as it does on one without. Slurm
# 24.11.5 with select/cons_tres and GresTypes: the merge is refused (`Unspecified error`; in the log of slurmctld,
# `JobId=J has allocated GRES`), also on nodes without GRES, and with --gres=none. Such a job gets all GRES of its nodes.
# A job that shares nodes is merged, and so are all jobs with select/linear. Slurm 22.05.8 and 26.05.5 are the same.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is trixie 24.11.5-4+deb13u1
script=$(cat <<'SH'
running() { [[ $(squeue -h -j "$1" -o %T) == RUNNING ]]; }
none() { [[ -z $(squeue -h) ]]; }
cd /tmp # for the scripts that scontrol writes
try() { # node of the job, node of its expander, partition, options
    job=$(sbatch --parsable -o /dev/null --mem=100 -w "$1" -p "$3" ${4-} --wrap "sleep 300")
    until_true running "$job"
    salloc -Q -J brings --mem=100 -w "$2" -p "$3" ${4-} --dependency="expand:$job" --no-shell
    gres=$(scontrol -d show job "$job" | { grep -oE -m 1 'GRES=acc\S+' || true; })
    said=$(scontrol update jobid="$(squeue -h -n brings -o %i)" numnodes=0 2>&1 | xargs) || true
    echo "$3 ${4-} on $1 and $2, ${gres:-no GRES}: ${said:-merged}, on $(squeue -h -j "$job" -o %N)"
    scancel -u root
    until_true none
}
try n1 n2 whole
try n3 n4 whole
try n3 n4 whole --gres=none
try n3 n4 shared
SH
)
on() {
    in_slurm 4 "$@" SchedulerParameters=bf_interval=1,bf_resolution=1,batch_sched_delay=0,permit_job_expansion \
        GresTypes=acc "NodeName=n[1-2] NodeHostname=localhost Port=[17001-17002] CPUs=2 RealMemory=1000" \
        "NodeName=n[3-4] NodeHostname=localhost Port=[17003-17004] CPUs=2 RealMemory=1000 Gres=acc:2" \
        "PartitionName=whole Nodes=ALL Default=YES OverSubscribe=EXCLUSIVE State=UP DefaultTime=10" \
        "PartitionName=shared Nodes=ALL State=UP DefaultTime=10" <<<"$script"
}
printed=$(on SelectType=select/cons_tres SelectTypeParameters=CR_Core)
echo "$printed"
says "it gets no GRES, and is not merged" "^whole  on n1 and n2, no GRES: Unspecified error for job [0-9]+, on n1\$" "$printed"
says "it gets all GRES" "^whole  on n3 and n4, GRES=acc:2: Unspecified error for job [0-9]+, on n3\$" "$printed"
says "also if it wants none" "^whole --gres=none on n3 and n4, GRES=acc:2: Unspecified error" "$printed"
says "one that shares nodes is merged" "^shared  on n3 and n4, no GRES: merged, on n\[3-4\]\$" "$printed"
printed=$(on SelectType=select/linear SelectTypeParameters=CR_Memory)
echo "$printed"
says "select/linear merges" "^whole  on n3 and n4, .*: merged, on n\[3-4\]\$" "$printed"
denies "all of them" "error" "$printed"
