"""Cleaning of logs: cleaning steps, recipes, and the audit of each step."""
