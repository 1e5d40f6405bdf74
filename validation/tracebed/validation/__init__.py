"""Metrics, statistics, verdicts and reports: a prediction held against reality."""
