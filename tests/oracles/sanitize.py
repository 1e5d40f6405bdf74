"""The C sources under the address and undefined-behavior sanitizers, on drawn cases: equal to Python, and no report.

python -m tests.oracles.sanitize                 # the cases of `tox -e sanitize`
python -m tests.oracles.sanitize 5000 --seed 7   # that many cases of the engine, from another seed

The script compiles each C source with gcc and `-fsanitize=address,undefined`, the engine also with its internal
checks, into a temporary folder. The cases run in a second Python that loads the sanitizer's library first; a report
ends it. Before that, two planted defects prove that reports are detected.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracebed.benchmarks.kernels.stream import StreamKernels

FLAGS = [
    *("-std=gnu11", "-O0", "-g", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-ffp-contract=off"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DTRACEBED_CHECK"),
]
PLANTED = {
    "heap-buffer-overflow": "#include <stdlib.h>\nint planted(int n) { int *p = malloc(4 * n); return p[n] = n; }",
    "signed integer overflow": "int planted(int n) { return n * 2147483647; }",
}
"""What the sanitizers report -> a source that does it when called with 2."""


def build(sources: list[Path], library: Path) -> None:
    """Compile `sources` into `library`."""
    subprocess.run(["gcc", *FLAGS, "-o", str(library), *map(str, sources), "-lm", "-ldl", "-lpthread"], check=True)


def sanitized(command: list[str], *, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Run Python with the address sanitizer's library loaded before all others."""
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")  # libstdc++ as well, for exceptions of other libraries
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(str(Path(path).resolve()) for path in found),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python does not free all memory at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run([sys.executable, *command], env=environment, capture_output=capture, text=True, check=False)


def prove_that_defects_are_seen(folder: Path) -> None:
    """Exit if a planted defect is not reported."""
    for report, source in PLANTED.items():
        (folder / "planted.c").write_text(source)
        build([folder / "planted.c"], folder / "planted.so")
        call = f"import ctypes; ctypes.CDLL({str(folder / 'planted.so')!r}).planted(2)"
        done = sanitized(["-c", call], capture=True)
        if not done.returncode or report not in done.stderr:
            sys.exit(f"a planted defect was not seen ({report}): exit status {done.returncode}\n{done.stderr}")


def run_cases(folder: Path, cases: int, large: int, seed: int) -> None:
    """Compare the engine and the kernels of `folder` with their Python counterparts; exit if they differ."""
    from tests.converters import test_pbs_drawn
    from tests.oracles import engines, evolving_cases, slurm_cases, table_cases
    from tracebed.benchmarks import kernels
    from tracebed.benchmarks.kernels import stream
    from tracebed.converters.formats.tools import pbs_text
    from tracebed.orchestrator.evolving import simulation as evolving
    from tracebed.orchestrator.simulation import engine
    from tracebed.slurm.simulation import engine as slurm

    for module in (engine, kernels, evolving, slurm, pbs_text):
        module.LIBRARY = folder / module.LIBRARY.name
    for number in range(cases + large):
        # Sleep fills the queue of instants: a large case of it takes minutes with the sanitizers.
        for sleep in (False, True) if number < cases // 4 else (False,):
            pools = sleep and number % 2 == 1
            if found := engines.compared(seed + number, large=number >= cases, sleep=sleep, pools=pools):
                what = (
                    f"{' (large)' if number >= cases else ''}{' (sleep)' if sleep else ''}{' (pools)' if pools else ''}"
                )
                sys.exit(f"seed {seed + number}{what}: {found}")
    for number in range(cases + large):
        if found := evolving_cases.compared(seed + number, large=number >= cases):
            sys.exit(f"seed {seed + number} of evolving jobs{' (large)' if number >= cases else ''}: {found}")
    for number in range(cases + large):
        if found := slurm_cases.compared(seed + number, large=number >= cases):
            sys.exit(f"seed {seed + number} of Slurm{' (large)' if number >= cases else ''}: {found}")
    for number in range(cases):
        test_pbs_drawn.drawn_outcome(seed + number)
    for number in range(max(1, cases // 10)):
        if found := table_cases.compared(folder / table_cases.LIBRARY, seed + number):
            sys.exit(f"seed {seed + number} of the table of CPUs: {found}")
    follow(folder)
    kernel, twin = kernels._load(kernels.LIBRARY), kernels._numpy_kernel()
    for first, units in ((0, 0), (7, 1), (0, 17), (2**40, 1000)):
        if kernel(first, units) != twin(first, units):
            sys.exit(f"the kernels differ on {units} units from {first}")
    for blocks, first, units in ((1, 0, 3), (7, 2**63, 100)):
        results = [streamed(made, blocks, first, units) for made in (stream._C(), stream._NumPy())]
        if results[0] != results[1]:
            sys.exit(f"the kernels of STREAM differ on {blocks} blocks and {units} units from {first}")
    what = f"{cases:,} cases and {large} large ones from seed {seed}, evolving jobs, Slurm, PBS, tables and the kernels"
    print(f"{what}: the same, nothing reported")  # noqa: T201


def follow(folder: Path) -> None:
    """Let a process with the library for unmodified programs follow a table; exit if its CPUs do not change."""
    from tests.patience import until
    from tracebed.benchmarks import unmodified
    from tracebed.benchmarks.affinity import strays
    from tracebed.benchmarks.drom import Administrator
    from tracebed.benchmarks.node_table import NodeTable

    cpus = sorted(os.sched_getaffinity(0))
    administrator = Administrator(NodeTable.create(folder / "node", cpus))
    variables = {**administrator.prepare(os.getpid(), cpus)[1], unmodified.THREAD: "1"}
    code = f"import ctypes, sys; ctypes.CDLL({str(folder / unmodified.NAME)!r}); sys.stdin.read()"
    program = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **variables}, stdin=subprocess.PIPE)
    until(lambda: administrator.pids() or program.poll() is not None)
    for mask in (cpus[:1], cpus):
        administrator.set_mask(program.pid, mask)
        if not until(
            lambda mask=mask: os.sched_getaffinity(program.pid) == set(mask) and not strays(program.pid, mask)
        ):
            sys.exit(f"the library for unmodified programs does not follow its CPUs: {mask}")
    program.communicate()
    if program.returncode:
        sys.exit(f"a program with the library for unmodified programs ends with status {program.returncode}")


def streamed(made: StreamKernels, blocks: int, first: int, units: int) -> tuple[object, ...]:
    """Return the results of all kernels of STREAM on arrays whose last element is used too."""
    from tracebed.benchmarks.kernels.stream import BLOCK, Function, arrays

    data = arrays(blocks * BLOCK)
    size = len(data.a)
    made.pattern(data, 0, size)
    checksum = made.units(data, first, units)
    made.fill(data.a, 0.5, 1, size - 1)
    for function in Function:
        made.stream(function, data, 3.0, 0, size)
    return checksum, made.error(data.a, data.a[size - 1], size - 1, 1), *(bytes(array) for array in data)


def main() -> int:
    """Build the libraries, prove that defects are detected, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=int, nargs="?", default=400)
    parser.add_argument("--large", type=int, default=4, help="cases of hundreds of jobs and nodes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--libraries", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.libraries:
        run_cases(options.libraries, options.cases, options.large, options.seed)
        return 0
    if not shutil.which("gcc"):
        sys.exit("gcc is needed: apt-get install gcc libc6-dev")
    from tests.oracles import table_cases
    from tracebed.benchmarks import kernels, unmodified
    from tracebed.converters.formats.tools import pbs_text
    from tracebed.orchestrator.evolving import simulation as evolving
    from tracebed.orchestrator.simulation import engine
    from tracebed.slurm.simulation import engine as slurm

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prove_that_defects_are_seen(folder)
        for library in (engine.LIBRARY, kernels.LIBRARY, evolving.LIBRARY, slurm.LIBRARY, pbs_text.LIBRARY):
            build(sorted(library.parent.glob("*.c")), folder / library.name)
        build([unmodified.SOURCE], folder / unmodified.NAME)
        table_cases.build(folder, *FLAGS)
        again = [str(options.cases), "--large", str(options.large), "--seed", str(options.seed)]
        return sanitized(["-m", __spec__.name, *again, "--libraries", name]).returncode


if __name__ == "__main__":
    sys.exit(main())
