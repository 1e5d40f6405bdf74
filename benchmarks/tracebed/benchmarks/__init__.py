"""Malleable benchmarks: fixed work, pinned threads, malleability points."""
