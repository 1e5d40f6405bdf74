#!/usr/bin/env bash
# Guess: AllocTRES of a job with a GRES of the flag no_consume has the amount requested, and `scontrol show node`
# shows the flag. Slurm 22.05.8: the amount is 0 on nodes with no_consume. On one such node and one without, a job
# with --gres=bandwidth:1024 has 1021 (1024 and the code of no_consume, -3), in sacct too. No command shows the flag.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
node() { echo "NodeName=n$1 NodeHostname=localhost Port=1700$1 CPUs=2 RealMemory=1000 Gres=bandwidth:${2-}4K"; }
printed=$(in_slurm 3 SelectType=select/cons_tres SelectTypeParameters=CR_Core GresTypes=bandwidth \
    AccountingStorageTRES=gres/bandwidth "$(node 1 no_consume:)" "$(node 2 no_consume:)" "$(node 3)" <<'SH'
none() { [[ -z $(squeue -h) ]]; }
for nodes in n1 n3 n1,n3 n1,n2; do
    sbatch -Q -w $nodes -N "$(wc -w <<<"${nodes//,/ }")" --gres=bandwidth:1024 -o /dev/null --wrap true
    until_true none
done
recorded() { [[ $(sacct -anX -o state | grep -c COMPLETED) == 4 ]]; }
until_true recorded
sacct -aXP -o jobid,nodelist,reqtres,alloctres
scontrol show node n1 | grep Gres=
sinfo -h -n n1 -o 'sinfo: %G'
SH
)
echo "$printed"
says "no_consume is 0" '^1\|n1\|.*gres/bandwidth=1024,.*\|.*gres/bandwidth=0,' "$printed"
says "what is consumed is counted" '^2\|n3\|.*gres/bandwidth=1024,.*\|.*gres/bandwidth=1024,' "$printed"
says "one node of each" '^3\|n\[1,3\]\|.*gres/bandwidth=2048,.*\|.*gres/bandwidth=1021,' "$printed"
says "two nodes of no_consume" '^4\|n\[1-2\]\|.*gres/bandwidth=2048,.*\|.*gres/bandwidth=0,' "$printed"
says "the node has the GRES" 'Gres=bandwidth:4K' "$printed"
denies "the flag is not shown" 'no_consume' "$printed"
