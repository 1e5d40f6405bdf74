"""Metrics, statistics, verdicts, reports and studies: the comparison of predictions with reality."""
