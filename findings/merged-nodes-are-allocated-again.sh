#!/usr/bin/env bash
# Guess: nodes that a job received from an expander (--dependency=expand:J, then NumNodes=0) are its own, so no other
# job starts on them. Slurm 22.05.8 with select/cons_tres: the CPUs of the job are recorded for as many nodes as the
# larger of the two jobs had. The other nodes are listed as nodes of the job, with idle CPUs, and Slurm starts other
# jobs there. A job that shrank keeps the room for the nodes that it had, and can grow to that size without this fault.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 6 \
    SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0,permit_job_expansion \
    SelectType=select/cons_tres SelectTypeParameters=CR_Core <<'SH'
running() { [[ $(squeue -h -j "$1" -o %T) == RUNNING ]]; }
none() { [[ -z $(squeue -h) ]]; }
submit() { sbatch --parsable -o /dev/null --ntasks-per-node=2 --time=10 "$@" --wrap "sleep 300"; }
cd /tmp # for the scripts that scontrol writes
try() { # nodes at the start, nodes after a shrink, nodes of the expander
    job=$(submit -N"$1")
    until_true running "$job"
    [[ $1 == "$2" ]] || scontrol update jobid="$job" numnodes="$2" >/dev/null
    sleep 2
    salloc -Q -J brings -N"$3" --ntasks-per-node=2 --dependency="expand:$job" --no-shell
    scontrol update jobid="$(squeue -h -n brings -o %i)" numnodes=0 >/dev/null
    held=$(squeue -h -j "$job" -o '%N')
    idle=$(sinfo -h -N -n "$held" -O NodeList:6,CPUsState | awk '$2 ~ /^0\// { print $1 }' | xargs)
    for _ in $(seq 6); do other=$(submit -J other -N1); done
    sleep 5
    twice=$(comm -12 <(scontrol show hostnames "$held" | sort) <(squeue -h -n other -t R -o %N | sort) | xargs)
    echo "$1 to $2 and $3 nodes: on $held, idle '$idle', other jobs on '$twice'"
    scancel -u root
    until_true none
}
try 1 1 1
try 1 1 2
try 2 2 2
try 4 2 2
SH
)
echo "$printed"
says "1 and 1: recorded is 1 node" "^1 to 1 and 1 nodes: on n\[1-2\], idle 'n2', other jobs on 'n2'\$" "$printed"
says "1 and 2: recorded are 2 nodes" "^1 to 1 and 2 nodes: on n\[1-3\], idle 'n3', other jobs on 'n3'\$" "$printed"
says "2 and 2: recorded are 2 nodes" "^2 to 2 and 2 nodes: on n\[1-4\], idle 'n3 n4', other jobs on 'n3 n4'\$" "$printed"
says "4 that became 2, and 2: recorded are 4 nodes" "^4 to 2 and 2 nodes: on n\[1-4\], idle '', other jobs on ''\$" "$printed"
