"""The programs of the page about malleable programs: they run as printed, and print what the page prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.patience import GUARD_S
from tracebed.benchmarks.dmr import Answer
from tracebed.benchmarks.dmr_manager import ResourceManager
from tracebed.benchmarks.mpi.launch import LOOPBACK, ROOT, compiler, mpiexec, run_until
from tracebed.benchmarks.unmodified import INCLUDE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "make-a-program-malleable.md"
ELASTIC = PAGE.with_name("elastic-programs.md")
SOLVER = """
#include <mpi.h>
static void iteration(MPI_Comm comm, double *data, int step);
PROGRAM
static void iteration(MPI_Comm comm, double *data, int step) {
    double sum;
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Allreduce(data, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
    if (rank == 0) printf("%d: %d processes, sum %g\\n", step, size, sum);
    *data *= 2;
}
int main(int argc, char **argv) {
    double data = 1;
    MPI_Init(&argc, &argv);
    run(argv, &data, 1, 4);
    MPI_Finalize();
    return 0;
}
"""
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


@pytest.mark.skipif(find_spec("mpi4py") is None or shutil.which("cc") is None, reason="pip install 'tracebed[mpi]'")
def test_the_documented_program_of_mpi_goes_through_its_sizes(tmp_path: Path) -> None:
    """Data and step of the spawned processes are those of the others."""
    found = re.search(r"^    #include <mpi.h>\n(?:    .*\n|\n)+", ELASTIC.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    (tmp_path / "solver.c").write_text(SOLVER.replace("PROGRAM", textwrap.dedent(found[0])))
    build = [compiler(), "-Wall", "-Werror", f"-I{INCLUDE}", "solver.c", "-o", "solver"]
    subprocess.run(build, cwd=tmp_path, check=True)
    plan = iter([3, 3, 1, 1])
    with ResourceManager(lambda pid, size, sizes: Answer.between(size, next(plan))) as manager:
        environment = {**os.environ, **LOOPBACK, **ROOT, **manager.variables}
        printed = run_until([*mpiexec(), str(tmp_path / "solver")], environment, tmp_path / "output", GUARD_S)
    # Each process has 1 at the start, and doubles it in each step.
    expected = [(0, 1, 1), (1, 3, 6), (2, 3, 12), (3, 1, 8)]
    assert printed.splitlines() == [f"{step}: {size} processes, sum {total}" for step, size, total in expected]
