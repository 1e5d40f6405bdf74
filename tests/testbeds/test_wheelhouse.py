"""The wheel of the installed tracebed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds import wheelhouse
from tracebed.orchestrator.testbeds.wheelhouse import wheel

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "tracebed/benchmarks/kernels/libtracebed_kernels.so"


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def pip(*arguments: str | Path, cwd: Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=cwd, env={**os.environ, "PIP_NO_INPUT": "1"})


def test_the_wheel_has_all_files_of_tracebed_and_none_of_this_installation(tmp_path: Path) -> None:
    found = names(wheel(tmp_path))
    version = importlib.metadata.version("tracebed")
    metadata = {Path(name).name for name in found if name.startswith(f"tracebed-{version}.dist-info/")}
    assert {name.partition("/")[0] for name in found} == {"tracebed", f"tracebed-{version}.dist-info"}
    assert metadata == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"}
    sources = {
        str(path.relative_to(ROOT / part))
        for part in ("converters", "benchmarks", "orchestrator", "validation")
        for path in (ROOT / part).rglob("*.py")
    }
    assert sources <= found
    assert "tracebed/orchestrator/testbeds/inventories/local.yaml" in found
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in found)


def test_equal_files_give_equal_wheels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = wheel(tmp_path / "a"), wheel(tmp_path / "b")
    assert first.name == second.name
    assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()


def test_a_wheel_for_another_platform_has_only_the_pure_parts(tmp_path: Path) -> None:
    ours = wheel(tmp_path)
    other = wheel(tmp_path, platform="linux-s390x")
    assert other.name.endswith("-py3-none-any.whl")
    assert not any(name.endswith(".so") for name in names(other))
    assert {name for name in names(ours) if not name.endswith(".so")} == names(other)
    if LIBRARY in names(ours):
        assert "linux" in ours.name


@pytest.mark.slow
def test_an_installed_wheel_gives_the_same_wheel_as_an_editable_installation(tmp_path: Path) -> None:
    made = wheel(tmp_path)
    site = tmp_path / "site"
    pip("install", "--no-index", "--no-deps", "--target", site, made, cwd=tmp_path)
    code = "import sys, pathlib; from tracebed.orchestrator.testbeds import wheelhouse; "
    code += "print(wheelhouse.__file__); print(wheelhouse.wheel(pathlib.Path(sys.argv[1])))"
    (tmp_path / "again").mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path / "again")],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    module, again = done.stdout.splitlines()
    assert Path(module).is_relative_to(site)
    assert Path(again).name == made.name
    with zipfile.ZipFile(made) as first, zipfile.ZipFile(again) as second:
        assert {name: first.read(name) for name in first.namelist() if not name.endswith(("WHEEL", "RECORD"))} == {
            name: second.read(name) for name in second.namelist() if not name.endswith(("WHEEL", "RECORD"))
        }


def test_a_missing_installation_is_an_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(wheelhouse.importlib.metadata, "distribution", missing)
    with pytest.raises(TestbedError, match="tracebed is not installed"):
        wheel(tmp_path)
