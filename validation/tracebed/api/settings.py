"""The settings of a setup, from which options are made. This module is light: a command imports it before it runs."""

from __future__ import annotations

from tracebed.orchestrator.scheduling.names import PRIORITIES
from tracebed.orchestrator.setup import SETTINGS, SETUP_PARTS, TYPES

__all__ = ["PRIORITIES", "SETTINGS", "SETUP_PARTS", "TYPES"]
