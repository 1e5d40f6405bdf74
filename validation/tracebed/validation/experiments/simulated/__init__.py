"""Simulated cells of an experiment: each is computed once, in a pool of workers."""
