"""Experiments: cells of workload x machine x setup x executor x repetition, one form, and views of the results."""
