"""Calibration of a testbed: probe workloads, their replays, and the estimates from these replays."""
