"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def reference_data() -> Callable[[str], Path]:
    """Return a function from a name to its path in the reference data; it skips the test where that is absent."""
    folder = Path(os.environ.get("TRACEBED_REFERENCE_DATA") or ROOT.parent / "shared" / "data")

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            pytest.skip(f"no reference data {name} in {folder} (set TRACEBED_REFERENCE_DATA)")
        return path

    return find
