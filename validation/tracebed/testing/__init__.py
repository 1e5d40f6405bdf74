"""Checks for extensions: the invariants that tracebed's own policies, formats, machines, testbeds and others satisfy.

    from tracebed.testing import check_policy

    def test_my_policy():
        check_policy(MyPolicy)

Each check returns None, or raises AssertionError with the violated invariant and the case. The cases are drawn from a
seed: the same seed gives the same cases.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracebed.testing.executors import check_executor
    from tracebed.testing.formats import check_format
    from tracebed.testing.machines import check_machine
    from tracebed.testing.policies import check_policy
    from tracebed.testing.providers import check_provider
    from tracebed.testing.testbeds import check_testbed

__all__ = ["check_executor", "check_format", "check_machine", "check_policy", "check_provider", "check_testbed"]

_MODULES = {
    "check_executor": "tracebed.testing.executors",
    "check_format": "tracebed.testing.formats",
    "check_machine": "tracebed.testing.machines",
    "check_policy": "tracebed.testing.policies",
    "check_provider": "tracebed.testing.providers",
    "check_testbed": "tracebed.testing.testbeds",
}
"""Name -> module, imported when the name is first used."""


def __getattr__(name: str) -> Any:
    """Import and return a name of `__all__`."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
