#!/usr/bin/env bash
# Guess: a job that waits for nodes that are being switched off starts on them, which boots them again, when
# SuspendTimeout is over. Slurm 22.05.8: slurmctld notices the end of SuspendTimeout at a look every 10 s, and tells
# neither the main loop nor backfill, although bf_interval is 1 s. The job starts with the next pass of the main loop
# over the whole queue, every 60 s.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3
cat >"$root/off" <<'SH'
#!/bin/sh
for node in $(/usr/bin/scontrol show hostnames "$1"); do kill "$(cat "/cluster/slurmd-$node.pid")"; done
SH
cat >"$root/on" <<'SH'
#!/bin/sh
for node in $(/usr/bin/scontrol show hostnames "$1"); do /usr/sbin/slurmd -b -N "$node" </dev/null >/dev/null 2>&1; done
SH
chmod 755 "$root/off" "$root/on"
printed=$(in_slurm 2 SuspendProgram=/off ResumeProgram=/on SuspendTime=5 SuspendTimeout=3 ResumeTimeout=60 <<'SH'
state() { [[ $(sinfo -h -N -o %T | sort -u) == "$1" ]]; }
waits() { [[ $(squeue -h -j "$1" -o %T) == PENDING ]]; }
until_true state idle%
job=$(sbatch --parsable -o /dev/null -N2 --time=1 --wrap "sleep 1")
from=$(date +%s)
until_true state idle~
off=$(date +%s)
sleep 10
waits "$job" && echo "10 s after the nodes are off: waits"
allocated() { ! waits "$job"; }
until_true allocated
echo "off after $((off - from)) s, allocated $(($(date +%s) - off)) s later"
SH
)
echo "$printed"
says "the job waits although all nodes are off" "^10 s after the nodes are off: waits\$" "$printed"
says "it is allocated with the next full pass" "^off after [0-9]+ s, allocated ([1-5][0-9]|6[0-5]) s later\$" "$printed"
