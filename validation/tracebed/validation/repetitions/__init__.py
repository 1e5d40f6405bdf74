"""Campaigns: repeated replays of several cells in random order, and the statistics of their repetitions."""
