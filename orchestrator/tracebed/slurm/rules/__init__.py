"""Slurm on nodes that jobs share: resources, priorities, and the backfill pass."""
