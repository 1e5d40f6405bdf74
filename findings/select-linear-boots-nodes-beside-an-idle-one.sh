#!/usr/bin/env bash
# Guess: nodes that are switched off are used last, so that a job of two nodes gets the idle node that is on, and one
# that is off. Slurm 22.05.8: so it is with select/cons_tres. With select/linear, only a job that fits on the nodes that
# are on gets them. Any other job gets nodes as if all were on: here two that are off, beside the idle one that is on.
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
for select in select/linear select/cons_tres; do
    printed=$(in_slurm 4 "SelectType=$select" SuspendProgram=/off ResumeProgram=/on SuspendTime=5 SuspendTimeout=3 \
        ResumeTimeout=60 SuspendExcNodes=n4 <<'SH'
asleep() { [[ $(sinfo -h -t idle -N -o %N:%T | xargs) == "n1:idle~ n2:idle~ n3:idle~ n4:idle" ]]; }
until_true asleep
allocated() { [[ -n $(squeue -h -j "$job" -o %N) ]]; }
for size in 1 2; do
    job=$(sbatch --parsable -o /dev/null -N"$size" --exclusive --time=1 --wrap "sleep 300")
    until_true allocated
    echo "job of $size: on $(squeue -h -j "$job" -o %N)"
    scancel "$job"
    until_true asleep
done
SH
)
    echo "$select"$'\n'"$printed"
    says "a job that fits on the node that is on gets it" "^job of 1: on n4\$" "$printed"
    [[ $select != select/linear ]] || says "the node that is on stays idle" "^job of 2: on n\[1-2\]\$" "$printed"
    [[ $select != select/cons_tres ]] || says "the node that is on comes first" "^job of 2: on n\[1,4\]\$" "$printed"
done
