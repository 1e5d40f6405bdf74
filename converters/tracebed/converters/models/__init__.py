"""Workload models: one module a model, all of them known to `registry`."""
