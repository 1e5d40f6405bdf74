"""Suites: cases of several workloads and policies, and the verdicts on the simulators that predict them."""
