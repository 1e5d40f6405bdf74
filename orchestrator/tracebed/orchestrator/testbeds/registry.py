"""Testbeds by name: the entry points of the group `tracebed.testbeds`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracebed.orchestrator.testbeds.base import Testbed
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.registry import Registry

Factory = Callable[[Inventory, Path], Testbed]
"""A function of an inventory and a folder for the files of agents and jobs. It returns a testbed, not started."""

TESTBEDS: Registry[Factory] = Registry("tracebed.testbeds", "testbed")
