"""Data sets of real runs by other people: their origin, and verified copies."""

from tracebed.validation.board import Dataset, dataset, datasets, fetch

__all__ = ["Dataset", "dataset", "datasets", "fetch"]
