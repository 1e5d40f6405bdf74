"""The version of tracebed. A replay needs it many times, and reading it takes half a millisecond."""

from __future__ import annotations

import importlib.metadata
from functools import cache


@cache
def version() -> str:
    """Return the version that is installed."""
    return importlib.metadata.version("tracebed")
