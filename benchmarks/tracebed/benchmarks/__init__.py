"""Benchmarks that really shrink and expand: fixed work, pinned threads, malleability points."""
