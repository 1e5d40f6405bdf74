"""Replays in which a batch system, such as Slurm, is the scheduler under test."""
