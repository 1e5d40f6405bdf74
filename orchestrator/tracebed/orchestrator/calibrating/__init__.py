"""Calibrating: probe workloads, their replays, and the calibration that follows from them."""
