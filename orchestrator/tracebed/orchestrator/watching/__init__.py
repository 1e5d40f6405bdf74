"""Watching a replay while it runs: its journal, read by another process."""
