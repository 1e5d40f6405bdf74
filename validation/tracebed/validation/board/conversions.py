"""Conversions of data sets whose form is their own, to tables that `tracebed import` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

CONVERSIONS: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {}
"""Name -> function from the contents of the files of a data set to the table."""
