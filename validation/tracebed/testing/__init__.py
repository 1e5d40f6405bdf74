"""Checks for extensions of tracebed, to be called in the tests of the packages that provide them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracebed.testing.testbeds import check_testbed

__all__ = ["check_testbed"]

_MODULES = {"check_testbed": "tracebed.testing.testbeds"}
"""Name -> module, imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
