"""Testbeds by name: the entry points of the group `tracebed.testbeds`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracebed.orchestrator.testbeds.base import Testbed
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.registry import Registry

Factory = Callable[[Inventory, Path], Testbed]
"""Makes a testbed of the nodes of an inventory, and of a folder for what agents and jobs write; it starts nothing."""

TESTBEDS: Registry[Factory] = Registry("tracebed.testbeds", "testbed")
