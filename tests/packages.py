"""Third-party packages, built and installed for a test: real distributions with entry points in a folder."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

PIP = ("-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--no-deps")
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0"
dependencies = ["tracebed"]

[tool.hatch.build.targets.wheel]
include = ["*.py"]
"""


def install(
    folder: Path, files: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]] | None = None
) -> Path:
    """Build a package of `files` (name -> text) with pip, install it below `folder`, and return its folder.

    `pyproject.toml` is written unless it is among the files; `entry_points` are group -> {name: "module:object"}.
    """
    source, site = folder / "package", folder / "site"
    source.mkdir(parents=True)
    project = PROJECT.format(name=f"tracebed-{folder.name}".replace("_", "-").rstrip("-"))
    for group, entries in (entry_points or {}).items():
        project += f'\n[project.entry-points."{group}"]\n'
        project += "".join(f'{name} = "{value}"\n' for name, value in entries.items())
    for name, text in {"pyproject.toml": project, **files}.items():
        (source / name).write_text(dedent(text))
    command = [sys.executable, *PIP, "--target", str(site), str(source)]
    subprocess.run(command, check=True, env={**os.environ, "PIP_NO_INPUT": "1"})
    return site


def tracebed(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command `tracebed` in a process with the packages installed in `site`."""
    code = f"import sys; sys.argv[1:] = {list(arguments)!r}; from tracebed.cli import main; main()"
    return python(site, code, cwd=cwd)


def python(site: Path, code: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process with the packages installed in `site`."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def files_of(guide: Path) -> dict[str, str]:
    """Return name -> text of the code blocks of a page that follow a line with a file name."""
    parts = guide.read_text(encoding="utf-8").split("\n```")
    named = [(before.rstrip().splitlines()[-1], block) for before, block in itertools.pairwise(parts)]
    return {
        line.strip("`:"): block.split("\n", 1)[1] + "\n"
        for line, block in named
        if line.startswith("`") and line.endswith("`:")
    }
