#!/usr/bin/env bash
# Guess: with CR_Socket a job gets the fewest sockets with enough CPUs, and with CR_Socket_Memory a job starts if
# these and their memory are free. Slurm 22.05.8: it deals tasks out over the free sockets, one each, and allocates
# each socket whole: on 2 sockets of 4 cores, -n2 gets 8 CPUs, but -n2 -c2 gets 4. On sockets of 2 cores, a task of 3
# CPUs gets 3 sockets, not 2. A job waits on an idle node that lacks memory for the sockets dealt out (-n3: 6 CPUs of
# 1000 MB, 5000 MB are there), although 2 of them would do: with -m block:block the same job starts on them.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3
script=$(cat <<'SH'
none() { [[ -z $(squeue -h) ]]; }
considered() { scontrol show job "$1" | grep -Eq 'JobState=RUNNING|Reason=Resources'; }
try() {
    id=$(sbatch --parsable "$@" -o /dev/null --wrap "sleep 300")
    until_true considered "$id"
    sleep 2 # some cycles of backfill
    echo "$*: $(scontrol -d show job "$id" | grep -oE 'JobState=\S+|NumCPUs=\S+|CPU_IDs=\S+|Mem=\S+' | xargs)"
    scancel "$id"
    until_true none
}
SH
)
node='NodeName=n1 NodeHostname=localhost Port=17001 ThreadsPerCore=1'
printed=$(in_slurm 1 SelectType=select/cons_tres SelectTypeParameters=CR_Socket \
    "$node Sockets=2 CoresPerSocket=4 RealMemory=1000" <<SH
$script
for options in -n1 -n2 "-n2 -c2"; do try \$options; done
SH
)
printed+=$'\nwith memory:\n'$(in_slurm 1 SelectType=select/cons_tres SelectTypeParameters=CR_Socket_Memory \
    DefMemPerCPU=1000 "$node Sockets=4 CoresPerSocket=2 RealMemory=9000" <<SH
$script
try -c3
SH
)
printed+=$'\nof 5000 MB:\n'$(in_slurm 1 SelectType=select/cons_tres SelectTypeParameters=CR_Socket_Memory \
    DefMemPerCPU=1000 "$node Sockets=4 CoresPerSocket=2 RealMemory=5000" <<SH
$script
for options in -n2 -n3 "-n3 -m block:block"; do try \$options; done
SH
)
echo "$printed"
says "one task gets a socket" '^-n1: JobState=RUNNING NumCPUs=4 ' "$printed"
says "two tasks get two sockets" '^-n2: JobState=RUNNING NumCPUs=8 CPU_IDs=0-7 ' "$printed"
says "two larger tasks get one" '^-n2 -c2: JobState=RUNNING NumCPUs=4 CPU_IDs=0-3 ' "$printed"
says "a task of 3 CPUs gets 3 sockets of 2" '^-c3: JobState=RUNNING NumCPUs=6 CPU_IDs=0-5 Mem=6000' "$printed"
says "two tasks fit into the memory" '^-n2: JobState=RUNNING NumCPUs=4 CPU_IDs=0-3 Mem=4000' "$printed"
says "three wait" '^-n3: JobState=PENDING NumCPUs=3$' "$printed"
says "three in blocks do not" '^-n3 -m block:block: JobState=RUNNING NumCPUs=4 CPU_IDs=0-3 Mem=4000' "$printed"
