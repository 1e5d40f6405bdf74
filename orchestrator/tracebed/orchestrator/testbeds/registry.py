"""Testbeds by name: the entry points of the group `tracebed.testbeds`."""

from __future__ import annotations

from collections.abc import Callable

from tracebed.ground.registry import Registry
from tracebed.orchestrator.testbeds.base import Testbed

Factory = Callable[..., Testbed]
"""A function of an inventory and a folder for the files of agents and jobs. It returns a testbed, not started. It may
be called with `drain=True`, to leave out nodes whose agent does not start."""

TESTBEDS: Registry[Factory] = Registry("tracebed.testbeds", "testbed")
