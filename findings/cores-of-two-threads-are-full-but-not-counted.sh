#!/usr/bin/env bash
# Guess: with CR_CPU_Memory and 2 threads a core, a job of one CPU takes one thread, and the other is for the next
# job; or it takes a core, and its NumCPUs, its memory of --mem-per-cpu and its billing count 2 CPUs. Slurm 22.05.8:
# it takes a core, which it shares with no job, but counts 1 CPU. A node of 4 cores with jobs of 1, 1 and 3 CPUs (5 of
# 8) is full, and 1 + 7 CPUs do not fit either. The node counts the threads held, 8; the jobs sum to 5.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3
printed=$(in_slurm 1 SelectType=select/cons_tres SelectTypeParameters=CR_CPU_Memory \
    "NodeName=n1 NodeHostname=localhost Port=17001 CPUs=8 Sockets=1 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=8000" \
    "PartitionName=main Nodes=ALL Default=YES State=UP TRESBillingWeights=CPU=1.0" <<'SH'
considered() { scontrol show job "$1" | grep -Eq 'JobState=RUNNING|Reason=Resources'; }
try() {
    id=$(sbatch --parsable "$1" --mem-per-cpu=100 -o /dev/null --wrap "sleep 300")
    until_true considered "$id"
    echo "$id ($1): $(scontrol -d show job "$id" | grep -oE 'JobState=\S+|NumCPUs=\S+|\<TRES=\S+|CPU_IDs=\S+' | xargs)"
}
for tasks in -n1 -n1 -n3 -n1; do try $tasks; done
scontrol show node n1 | grep -oE 'CPUAlloc=.*|AllocTRES=.*'
scancel -u root
none() { [[ -z $(squeue -h) ]]; }
until_true none
for tasks in -n1 -n7; do try $tasks; done
SH
)
echo "$printed"
says "a job of one CPU holds two" '^1 .*NumCPUs=1 TRES=cpu=1,mem=100M,node=1,billing=1 CPU_IDs=0-1$' "$printed"
says "the next one is on another core" '^2 .*NumCPUs=1 .*CPU_IDs=2-3$' "$printed"
says "a job of three holds four" '^3 .*NumCPUs=3 TRES=cpu=3,mem=300M,node=1,billing=3 CPU_IDs=4-7$' "$printed"
says "the node is full" '^4 .*JobState=PENDING' "$printed"
says "the node counts threads" '^AllocTRES=cpu=8,mem=500M' "$printed"
says "1 + 7 CPUs fit" '^5 .*JobState=RUNNING' "$printed"
says "or rather do not, on 8 CPUs" '^6 .*JobState=PENDING' "$printed"
