"""The programs of the page about malleable programs: they run as printed, and print what the page prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from patience import GUARD_S
from tracebed.benchmarks.unmodified import INCLUDE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "make-a-program-malleable.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
PRINTED = dict(re.findall(r"^`python (\w+\.py)` prints\n\n```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", [*FILES])
def test_a_documented_program_runs_as_printed(name: str, tmp_path: Path) -> None:
    for file, code in FILES.items():
        (tmp_path / file).write_text(code)
    command, environment = [sys.executable, name], {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONUNBUFFERED", None)  # it makes `print` write a line in pieces; another process may be between
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    if name in PRINTED:
        assert sorted(done.stdout.splitlines()) == sorted(PRINTED[name].splitlines())
    else:  # without an administrator
        assert done.stdout.startswith("begins with ") and done.stdout.count("\n") == 1


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_documented_lines_of_c_compile(tmp_path: Path) -> None:
    found = re.search(r"^    (#include \"tracebed_malleable.h\"\n)\n((?:    .*\n)+)", TEXT, re.MULTILINE)
    assert found is not None
    body = f"{found[1]}#include <omp.h>\nvoid iteration(int);\nint run(int iterations) {{\n{found[2]}return 0;\n}}\n"
    (tmp_path / "lines.c").write_text(body)
    command = ["gcc", "-fopenmp", "-Wall", "-Werror", f"-I{INCLUDE}", "-c", "lines.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = re.search(r"^    #include <omp.h>\n(?:    .*\n|\n)+", TEXT, re.MULTILINE)
    assert found is not None
    (tmp_path / "steps.c").write_text(textwrap.dedent(found[0]))
    subprocess.run(["gcc", "-fopenmp", "-Wall", "-Werror", "steps.c", "-o", "steps"], cwd=tmp_path, check=True)
