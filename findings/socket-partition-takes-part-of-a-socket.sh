#!/usr/bin/env bash
# Guess: a job of a partition with SelectTypeParameters=CR_Socket waits for a whole free socket, if a partition with
# CR_Core is on the same nodes. Slurm 22.05.8: so it does at first (3 of 4 cores are taken by a job of cores), but once
# a job of sockets has run, the next one gets the remaining core beside the other job. Its NumCPUs, 2, counts the whole
# socket: the jobs sum to 5 CPUs, and the node counts 4.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3
printed=$(in_slurm 1 SelectType=select/cons_tres SelectTypeParameters=CR_Core \
    "NodeName=n1 NodeHostname=localhost Port=17001 Sockets=2 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000" \
    "PartitionName=cores Nodes=ALL Default=YES State=UP" \
    "PartitionName=sockets Nodes=ALL State=UP SelectTypeParameters=CR_Socket" <<'SH'
considered() { scontrol show job "$1" | grep -Eq 'JobState=RUNNING|Reason=Resources'; }
none() { [[ -z $(squeue -h) ]]; }
try() {
    for options; do
        id=$(sbatch --parsable $options -o /dev/null --wrap "sleep 300")
        until_true considered "$id"
        sleep 2 # some cycles of backfill
        echo "$id $options: $(scontrol -d show job "$id" | grep -oE 'JobState=\S+|NumCPUs=\S+|CPU_IDs=\S+' | xargs)"
    done
    scontrol show node n1 | grep -oE 'CPUAlloc=.*CPUTot=\S+'
    scancel -u root
    until_true none
}
try "-p cores -n3" "-p sockets -n1"
try "-p sockets -n1"
try "-p cores -n3" "-p sockets -n1"
SH
)
echo "$printed"
says "a job of sockets waits" '^2 -p sockets -n1: JobState=PENDING' "$printed"
says "one gets a whole socket" '^3 -p sockets -n1: JobState=RUNNING NumCPUs=2 CPU_IDs=0-1$' "$printed"
says "a job of cores gets three cores" '^4 -p cores -n3: JobState=RUNNING NumCPUs=3 CPU_IDs=0-2$' "$printed"
says "the next gets the fourth, and counts two" '^5 -p sockets -n1: JobState=RUNNING NumCPUs=2 CPU_IDs=3$' "$printed"
says "the node counts four" '^CPUAlloc=4 .*CPUTot=4' "$printed"
