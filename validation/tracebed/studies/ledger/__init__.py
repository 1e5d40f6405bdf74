"""Ledgers: the claims of papers beside our figures, their pages, and the sensitivity of figures to free choices."""
