"""What operators of a Slurm cluster ask: what a changed slurm.conf does to the waits, and when waiting jobs start.

A wing: the core does not import it. Its commands and its names in `tracebed.api` are entry points, as anybody's are.
"""
