"""Slurm on nodes that jobs share, in virtual time: the cluster of a slurm.conf and a workload make a run."""
