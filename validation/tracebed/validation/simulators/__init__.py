"""Simulators of other projects: readers of their output, and drivers that run them."""
