"""Predictions of the real cells of an experiment, by several simulators."""
