"""Simulation: the scheduler in virtual time, run-time models, predictions, and the compiled engine."""
