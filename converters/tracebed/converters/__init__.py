"""Workload models and public logs in, clean submission lists out."""
