"""Configuration of Slurm: its files as parameters of the policy `slurm`, and the environment of its commands."""
