"""Benchmarks as programs of their own: `tracebed nodes bench pils` and `tracebed nodes bench stream`.

They are malleable: with a table of CPUs (`tracebed.benchmarks.drom`), they follow the changes of their CPUs.
"""
