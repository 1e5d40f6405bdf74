"""The version and the extensions of the installed tracebed, found without `importlib.metadata`."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from tracebed.ground import version as module
from tracebed.ground.version import own_entry_points, version


def test_version_and_entry_points_are_those_of_the_metadata() -> None:
    expected: dict[str, dict[str, str]] = {}
    for entry in metadata.distribution("tracebed").entry_points:
        expected.setdefault(entry.group, {})[entry.name] = entry.value
    assert own_entry_points() == expected
    assert version() == metadata.version("tracebed")


def test_metadata_that_are_no_folder_of_the_search_path_are_read_by_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_metadata", lambda: None)
    monkeypatch.setattr(metadata, "version", lambda name: f"{name} 9")
    assert (version.__wrapped__(), own_entry_points.__wrapped__()) == ("tracebed 9", {})


def test_the_first_folder_of_the_search_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/tracebed_own-3.dist-info", "b/tracebed-2.dist-info", "c/tracebed-1.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in "xabc"])
    assert module._metadata.__wrapped__() == tmp_path / "b/tracebed-2.dist-info"
