"""Data sets of real runs by other people, with their origin, licence and hashes. The data are not part of tracebed."""

from tracebed.studies.board.datasets import Dataset, dataset, datasets
from tracebed.studies.board.fetching import fetch, fetch_from

__all__ = ["Dataset", "dataset", "datasets", "fetch", "fetch_from"]
