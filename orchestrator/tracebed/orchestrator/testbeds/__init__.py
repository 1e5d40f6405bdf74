"""Testbeds: inventories of nodes, and the agents on the nodes."""
