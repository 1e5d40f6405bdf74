"""Replay: the scheduler in real time, with its loop, ranks, session and journal."""
