#!/usr/bin/env bash
# Guess: a job whose nodes were switched on by ResumeProgram begins when the last of them has registered. Slurm 22.05.8:
# slurmctld looks for such jobs in the loop that looks for jobs beyond their time limit, every 30 s. So a job waits for
# up to half a minute on nodes that have booted, and jobs on booted nodes begin at one phase of half a minute.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3
cat >"$root/off" <<'SH'
#!/bin/sh
for node in $(/usr/bin/scontrol show hostnames "$1"); do kill "$(cat "/cluster/slurmd-$node.pid")"; done
SH
cat >"$root/on" <<'SH'
#!/bin/sh
sleep 3
for node in $(/usr/bin/scontrol show hostnames "$1"); do
    /usr/sbin/slurmd -b -N "$node" </dev/null >/dev/null 2>&1
    date +%s >"/cluster/on-$node"
done
SH
chmod 755 "$root/off" "$root/on"
printed=$(in_slurm 3 SuspendProgram=/off ResumeProgram=/on SuspendTime=5 SuspendTimeout=3 ResumeTimeout=60 <<'SH'
asleep() { [[ $(sinfo -h -N -o %T | sort -u) == idle~ ]]; }
running() { [[ $(squeue -h -j "$1" -o %T) == RUNNING ]]; }
export SLURM_TIME_FORMAT=%s
for node in n1 n2 n3; do
    until_true asleep
    job=$(sbatch --parsable -o /dev/null -w "$node" --time=1 --wrap "sleep 1; sleep $((RANDOM % 12))")
    until_true running "$job"
    start=$(squeue -h -j "$job" -o %S)
    [[ -n ${first:-} ]] || first=$start
    echo "$node registered, then $((start - $(cat "/cluster/on-$node"))) s, phase $(((start - first + 15) % 30 - 15)) s"
    until_true asleep
done
SH
)
echo "$printed"
says "all jobs begin at one phase" "^n3 registered, then [0-9]+ s, phase -?[0-3] s\$" "$printed"
says "so does the second" "^n2 registered, then [0-9]+ s, phase -?[0-3] s\$" "$printed"
says "some job waits for its booted node" "then ([4-9]|[12][0-9]|30) s" "$printed"
