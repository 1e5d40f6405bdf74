"""Applications: the programs that run as jobs, each a module on the common loop (`tracebed.benchmarks.leader`)."""
