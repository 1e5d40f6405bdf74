"""Benchmarks as programs of their own: `tracebed bench pils` and `tracebed bench stream`.

They are malleable: with a table of CPUs (`tracebed.benchmarks.drom`), they follow the changes of their CPUs.
"""
