#!/usr/bin/env bash
# Guess: what Slurm's list of hosts means, ClusterShell 1.10.1 and python-hostlist 2.3.0 read alike, in the order of the
# list: rank 0 of a step is on the first name. Slurm 22.05.8 keeps order and repetitions (`n[2,1]`, `n[1-3,2]`).
# ClusterShell sorts, and both libraries drop a repeated name, so that ranks and nodes no longer match. Slurm and
# python-hostlist read n[01-3] as n01 to n03; ClusterShell refuses it, as the widths differ. And a name that goes on
# with a letter after the bracket, n[1-2]x, is invalid for Slurm, n[1-2]-ib[0-1] is not; both libraries take both.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3
mkdir -p "$root/etc/slurm"
printf '%s\n' ClusterName=x SlurmctldHost=localhost NodeName=n1 'PartitionName=p Nodes=n1' >"$root/etc/slurm/slurm.conf"
python3 -m venv "$root/venv"
"$root/venv/bin/pip" -q install ClusterShell==1.10.1 python-hostlist==2.3.0
printed=$(for names in 'n[2,1]' 'n[1-3,2]' 'n[01-3]' 'n[1-2]-ib[0-1]' 'n[1-2]x'; do
    echo "Slurm $names: $({ chroot "$root" scontrol show hostnames "$names" || true; } 2>&1 | xargs)"
    "$root/venv/bin/python" - "$names" <<'PY'
import sys

from ClusterShell.NodeSet import NodeSet, NodeSetException
from hostlist import expand_hostlist

names = sys.argv[1]
print(f"python-hostlist {names}:", *expand_hostlist(names))
try:
    print(f"ClusterShell {names}:", *NodeSet(names))
except NodeSetException as error:
    print(f"ClusterShell {names}:", error)
PY
done)
echo "$printed"
says "Slurm keeps the order" '^Slurm n\[2,1\]: n2 n1$' "$printed"
says "ClusterShell sorts" '^ClusterShell n\[2,1\]: n1 n2$' "$printed"
says "Slurm keeps a repetition" '^Slurm n\[1-3,2\]: n1 n2 n3 n2$' "$printed"
says "ClusterShell drops it" '^ClusterShell n\[1-3,2\]: n1 n2 n3$' "$printed"
says "python-hostlist drops it" '^python-hostlist n\[1-3,2\]: n1 n2 n3$' "$printed"
says "Slurm pads to the first width" '^Slurm n\[01-3\]: n01 n02 n03$' "$printed"
says "ClusterShell refuses it" '^ClusterShell n\[01-3\]: .*padding length mismatch' "$printed"
says "Slurm takes a list that goes on" '^Slurm n\[1-2\]-ib\[0-1\]: n1-ib0 n1-ib1 n2-ib0 n2-ib1$' "$printed"
says "but not with a letter" '^Slurm n\[1-2\]x: Invalid hostlist' "$printed"
says "which python-hostlist takes" '^python-hostlist n\[1-2\]x: n1x n2x$' "$printed"
