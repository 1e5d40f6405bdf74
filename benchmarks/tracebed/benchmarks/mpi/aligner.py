"""The pipelined aligner over MPI (`aligner.c`): compiled with `mpicc`, run, and its two versions compared.

The paper on the malleable HPG-aligner compares the original with the malleable version, with as many chunks as workers
and without a reconfiguration ("Validation of the proposed HPG-aligner malleable version").
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Final, Literal, NamedTuple

from tracebed.benchmarks.dmr import Answer, SizeRange
from tracebed.benchmarks.dmr_manager import ResourceManager
from tracebed.benchmarks.kernels import LIBRARY, alternated
from tracebed.benchmarks.mpi.launch import LOOPBACK, ROOT, compiler, mpiexec, run_until
from tracebed.benchmarks.unmodified import INCLUDE
from tracebed.ground.errors import InputError, TestbedError

SOURCES: Final = (Path(__file__).with_name("aligner.c"), LIBRARY.with_name("pils.c"))
INDEX_MIB: Final = 1
TIMEOUT_S: Final = 600.0
Version = Literal["original", "malleable"]


@dataclass(frozen=True)
class AlignerRun:
    """The result of a run.

    Attributes:
        processes: number of processes at the end.
        chunks: number of chunks.
        reads: number of reads.
        checksum: sum of the alignments modulo 2^64, which depends on the reads only.
        seconds: wall time without the start and the end of MPI, s.
        cpu_s: CPU time of the workers at the end in it, s. Waits of manager and writer are not part of it.
        sizes: number of processes at the start, and after each change.
    """

    processes: int
    chunks: int
    reads: int
    checksum: str
    seconds: float
    cpu_s: float
    sizes: tuple[int, ...]


class Ratio(NamedTuple):
    """A time of the malleable version over that of the original one, - 1."""

    medians: float  # of the medians of all runs
    low: float  # lower quartile of the ratios of the pairs, - 1
    high: float  # upper quartile


@dataclass(frozen=True)
class Overhead:
    """Pairs of runs of the original and the malleable version.

    Attributes:
        pairs: the runs of each pair, the original first.
    """

    pairs: tuple[tuple[AlignerRun, AlignerRun], ...]

    @property
    def wall(self) -> Ratio:
        """The wall times."""
        return self._ratio(lambda run: run.seconds)

    @property
    def cpu(self) -> Ratio:
        """The CPU times of the workers, which other processes of the machine disturb less."""
        return self._ratio(lambda run: run.cpu_s)

    def _ratio(self, value: Callable[[AlignerRun], float]) -> Ratio:
        before, after = (median(value(pair[version]) for pair in self.pairs) for version in (0, 1))
        each = sorted(value(pair[1]) / value(pair[0]) - 1 for pair in self.pairs)
        low, _, high = quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
        return Ratio(after / before - 1, low, high)


def build(folder: Path) -> Path:
    """Compile the program into `folder`, and return its path."""
    program = folder / "aligner"
    command = [compiler(), "-std=gnu11", "-O3", f"-I{INCLUDE}", *map(str, SOURCES), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        what = f"the aligner cannot be compiled: {done.stderr.strip()[-500:]}"
        raise TestbedError(what, hint="set CC of mpicc to a C compiler for this machine")
    return program


def run(
    program: Path,
    version: Version,
    processes: int,
    reads: int,
    *,
    chunks: int = 0,
    sizes: SizeRange | None = None,
    decide: Callable[[int, int, SizeRange], Answer] | None = None,
) -> AlignerRun:
    """Run a version of the aligner on this machine, and return its result. The program checks that no read is lost.

    The output of the `program` of `build`, a line for each chunk, is beside it. In the version `original`, the parts of
    the workers are fixed at the start; in the version `malleable`, a manager deals chunks. The `processes` at the start
    are the workers, the writer, and the manager of the malleable version, which has by default four `chunks` for the
    largest number of workers, and the `sizes` of the start. Without `decide`, each check is answered with no action.
    """
    least = 3 if version == "malleable" else 2
    sizes = sizes or SizeRange(processes, processes, processes)
    if processes < least or (version == "malleable" and sizes.least < 3) or reads < 1 or chunks < 0:
        what = f"{processes} processes (at least {sizes.least}), {reads} reads or {chunks} chunks are invalid"
        raise InputError(what, hint=f"the {version} version needs {least} processes and a read")
    given = [version, str(program.with_suffix(f".{version}")), str(reads), str(chunks), str(INDEX_MIB)]
    given += [str(size) for size in (sizes.least, sizes.preferred, sizes.most)] if version == "malleable" else []
    command = [*mpiexec(processes), str(program), *given]
    output = program.with_suffix(".output")
    with ResourceManager(decide or (lambda pid, size, wanted: Answer.between(size, size))) as manager:
        environment = {**os.environ, **LOOPBACK, **ROOT, **manager.variables}
        printed = run_until(command, environment, output, TIMEOUT_S)
    *changes, last = printed.splitlines()
    after = tuple(int(line.split()[2]) for line in changes if " processes before chunk " in line)
    return AlignerRun(**json.loads(last), sizes=(processes, *after))


def overhead(workers: int, reads: int, pairs: int, chunks: int) -> Overhead:
    """Run both versions in pairs with the same number of workers, each version first in every other pair.

    Args:
        workers: number of workers, at least 1.
        reads: number of reads.
        pairs: number of pairs.
        chunks: chunks of the malleable version for each worker; 1 as in the paper.

    Raises:
        InputError: a value is below 1.
        TestbedError: MPI is missing, a run has failed, or the versions have different checksums.
    """
    if min(workers, reads, pairs, chunks) < 1:
        raise InputError("workers, reads, pairs and chunks have to be at least 1")
    versions: tuple[Version, Version] = ("original", "malleable")
    runs: dict[Version, list[AlignerRun]] = {version: [] for version in versions}
    with tempfile.TemporaryDirectory(prefix="tracebed-aligner-") as name:
        program = build(Path(name))
        for number, version in alternated(versions, pairs):
            size = workers + (2 if version == "malleable" else 1)
            runs[version].append(run(program, version, size, reads, chunks=workers * chunks))
            checksums = [runs[other][number - 1].checksum for other in versions if len(runs[other]) == number]
            if len({*checksums}) > 1:
                what = f"the original aligner has the checksum {checksums[0]}, the malleable one {checksums[1]}"
                raise TestbedError(what, hint="check the MPI library")
    return Overhead(tuple(zip(*runs.values(), strict=True)))
