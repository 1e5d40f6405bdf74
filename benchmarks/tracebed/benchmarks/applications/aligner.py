"""A producer-consumer application like the malleable HPG-aligner of the DMR paper (figures 3 and 4, algorithms 1 to 3).

The manager (the leader) deals reads to the workers, which are the cores: a worker that has finished draws more. The
workers align the reads of each chunk to the index, the common data, and count splices, the worker data. Their results
go to the writer (the leader), which writes a line for each chunk when all its reads are aligned.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TextIO

from tracebed.benchmarks.application_data import DataKernel
from tracebed.benchmarks.applications.base import Application, Demands
from tracebed.benchmarks.connections import Data
from tracebed.benchmarks.kernels import MODULUS, compute
from tracebed.benchmarks.program import Program
from tracebed.ground.errors import InputError, TestbedError

SEED_BYTES = 4096  # bytes of the index that a worker reads for a chunk
JUNCTIONS = 1024  # number of splice junctions that the workers count
_RESULT = struct.Struct("<3Q")  # chunk, reads, checksum
_COUNTS = struct.Struct(f"<{JUNCTIONS}Q")


@dataclass(frozen=True)
class Aligner(Application):
    """An aligner of reads: a manager, workers and a writer.

    Args:
        chunk: reads of a chunk, at least 1. A read is a unit of work.
        index_mib: size of the index on each rank, MiB, at least 1.
    """

    demands: ClassVar[Demands] = Demands(
        cpu="all cores, which draw reads from the leader; a line of output for each chunk",
        memory="index_mib, 16 MiB by default",
        bandwidth="4 KiB of the index for each chunk: none that can be measured",
    )

    chunk: int = 256
    index_mib: int = 16

    def __post_init__(self) -> None:
        for name in ("chunk", "index_mib"):
            if getattr(self, name) < 1:
                raise InputError(f"aligner.{name} cannot be {getattr(self, name)}", hint="at least 1")

    @property
    def own_mib(self) -> int:
        """Size of the index, MiB."""
        return self.index_mib

    @property
    def balance(self) -> str | None:
        """How the work is divided: workers draw reads."""
        return "dynamic"

    def kernel(self, program: Program) -> Aligning:
        """Return the function that aligns reads, with its data."""
        return Aligning(self.chunk, self.index_mib)


class Aligning(DataKernel):
    """The work and the data of a rank of the aligner.

    The result of a read is that of a unit of PILS. The first read of a chunk adds a checksum of a part of the index, so
    that a wrong index is noticed. All sums are modulo 2^64, and do not depend on the ranks that align the reads.
    """

    def __init__(self, chunk: int, index_mib: int) -> None:
        self.chunk, self.index_mib = chunk, index_mib
        self.index: Data = b""
        self.splices = [0] * JUNCTIONS
        self._lock = threading.Lock()  # of the splices, the results and the making of the index
        # Chunk -> number and checksum of its reads, since the last call of `results`.
        self._aligned: dict[int, tuple[int, int]] = {}
        self._written: dict[int, tuple[int, int]] = {}  # writer: the same of the chunks that are not complete yet
        self._file: TextIO | None = None
        self.chunks = self.reads = self._checksum = 0  # written

    def __call__(self, first: int, count: int) -> int:
        """Align reads. Return the checksum of the results."""
        index, total = self.common(), 0
        while count:
            chunk = first // self.chunk
            reads = min(count, (chunk + 1) * self.chunk - first)
            found = compute(first, reads)
            if first == chunk * self.chunk:
                place = chunk * 40_503 % (len(index) - SEED_BYTES + 1)
                found = (found + zlib.crc32(index[place : place + SEED_BYTES])) % MODULUS
            with self._lock:
                _add(self._aligned, chunk, reads, found)
                self.splices[chunk % JUNCTIONS] = (self.splices[chunk % JUNCTIONS] + found) % MODULUS
            total, first, count = total + found, first + reads, count - reads
        return total % MODULUS

    def common(self) -> bytes:
        """Return the index, which the first call makes."""
        with self._lock:
            if not self.index:
                part = hashlib.shake_128(b"index").digest(2**20)
                numbers = (number.to_bytes(8, "little") for number in range(self.index_mib))
                self.index = b"".join(number + part[8:] for number in numbers)
            return self.index  # type: ignore[return-value]

    def adopt(self, common: Data) -> None:
        """Use the index of the leader."""
        self.index = common

    def take(self) -> bytes:
        """Return the splices of this rank, and count from 0."""
        taken, self.splices = self.splices, [0] * JUNCTIONS
        return _COUNTS.pack(*taken)

    def merge(self, worker: Data) -> None:
        """Add the splices of another rank."""
        self.splices = [
            (own + other) % MODULUS for own, other in zip(self.splices, _COUNTS.unpack(worker), strict=True)
        ]

    def results(self) -> bytes:
        """Return chunk, reads and checksum of what has been aligned since the last call."""
        aligned, self._aligned = self._aligned, {}
        return b"".join(_RESULT.pack(chunk, *result) for chunk, result in aligned.items())

    def open(self, output: Path) -> None:
        """Begin the file `output`.chunks: a line for each chunk, with its number, reads and checksum."""
        self._summary = output.with_name(output.name + ".summary.json")
        self._file = output.with_name(output.name + ".chunks").open("w")

    def write(self, results: Data) -> None:
        """Write the chunks that are complete."""
        for chunk, reads, checksum in _RESULT.iter_unpack(results):
            _add(self._written, chunk, reads, checksum)
            if self._written[chunk][0] >= self.chunk:
                self._write(chunk)

    def finish(self, checksum: int | None) -> None:
        """Write the last chunk, and a summary. Raises TestbedError if splices or chunks are lost or counted twice."""
        for chunk in sorted(self._written):
            self._write(chunk)
        assert self._file is not None
        self._file.close()
        splices = sum(self.splices) % MODULUS
        checksum = self._checksum if checksum is None else checksum
        if not checksum == splices == self._checksum:
            sums = f"splices {splices:016x}, chunks {self._checksum:016x}"
            raise TestbedError(f"the checksum of the job is {checksum:016x}, but its data have the checksums {sums}")
        counts = hashlib.sha256(_COUNTS.pack(*self.splices)).hexdigest()
        summary = {"chunks": self.chunks, "reads": self.reads, "checksum": f"{checksum:016x}", "splices": counts}
        self._summary.write_text(json.dumps(summary) + "\n")

    def _write(self, chunk: int) -> None:
        reads, checksum = self._written.pop(chunk)
        assert self._file is not None
        self._file.write(f"{chunk} {reads} {checksum:016x}\n")
        self.chunks, self.reads = self.chunks + 1, self.reads + reads
        self._checksum = (self._checksum + checksum) % MODULUS


def _add(sums: dict[int, tuple[int, int]], chunk: int, reads: int, checksum: int) -> None:
    before, sum_before = sums.get(chunk, (0, 0))
    sums[chunk] = before + reads, (sum_before + checksum) % MODULUS
