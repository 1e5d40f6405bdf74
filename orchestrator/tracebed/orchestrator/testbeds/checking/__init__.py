"""Nodes without a replay: making them ready, their facts, and their health."""
