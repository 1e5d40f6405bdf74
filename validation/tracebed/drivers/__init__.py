"""Simulators of other projects that tracebed runs."""
