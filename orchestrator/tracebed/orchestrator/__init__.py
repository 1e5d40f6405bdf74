"""Replays a workload on nodes that are real, or predicts it on nodes that are not: one scheduler for both."""
