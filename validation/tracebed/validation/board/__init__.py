"""Data sets of real runs by other people, with their origin, licence and hashes. The data are not part of tracebed."""

from tracebed.validation.board.datasets import Dataset, dataset, datasets
from tracebed.validation.board.fetching import fetch

__all__ = ["Dataset", "dataset", "datasets", "fetch"]
