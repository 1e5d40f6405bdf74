"""What if: a log predicted under its slurm.conf and under a changed one, beside what happened."""
