"""The pipelined aligner over MPI: workers, manager and writer as processes, which come and go."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracebed.benchmarks.dmr import Answer, SizeRange
from tracebed.benchmarks.kernels import compute
from tracebed.benchmarks.mpi import aligner
from tracebed.cli import tracebed
from tracebed.ground.errors import InputError, TestbedError

needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or shutil.which("cc") is None, reason="pip install 'tracebed[mpi]', gcc"
)
READS = 24_010
BLOCK, PART = 256, 4096


def index() -> bytes:
    """Return the index of the aligner: the lowest bytes of xorshift64."""
    x, made = 88172645463325252, bytearray()
    for _ in range(aligner.INDEX_MIB * 2**20):
        x ^= x << 13 & 2**64 - 1
        x ^= x >> 7
        x ^= x << 17 & 2**64 - 1
        made.append(x & 255)
    return bytes(made)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return aligner.build(tmp_path_factory.mktemp("aligner"))


@pytest.fixture(scope="module")
def expected() -> str:
    """Return the checksum of all reads, computed at once."""
    common = index()
    total = compute(0, READS)
    for read in range(0, READS, BLOCK):
        place = read // BLOCK * 40503 % (len(common) - PART + 1)
        total += sum((i + 1) * byte for i, byte in enumerate(common[place : place + PART]))
    return f"{total % 2**64:016x}"


def written(program: Path, version: str) -> list[list[str]]:
    """Return the lines of the writer, sorted by chunk."""
    lines = [line.split() for line in program.with_suffix(f".{version}").read_text().splitlines()]
    return sorted(lines, key=lambda line: int(line[0]))


@needs_mpi
def test_the_original_version_divides_the_reads_among_its_workers(program: Path, expected: str) -> None:
    """Figure 2: three workers, a writer, no manager."""
    run = aligner.run(program, "original", 4, READS)
    assert (run.processes, run.chunks, run.reads, run.checksum) == (4, 3, READS, expected)
    assert [line[:2] for line in written(program, "original")] == [["0", "8003"], ["1", "8003"], ["2", "8004"]]


@needs_mpi
def test_the_malleable_version_has_four_chunks_for_each_of_the_most_workers(program: Path, expected: str) -> None:
    """Each iteration has a chunk for each worker, and then a check, except after the last chunk."""
    checks: list[tuple[int, SizeRange]] = []

    def none(pid: int, size: int, sizes: SizeRange) -> Answer:
        checks.append((size, sizes))
        return Answer.between(size, size)

    sizes = SizeRange(3, 4, 5)
    run = aligner.run(program, "malleable", 4, READS, sizes=sizes, decide=none)
    assert (run.processes, run.chunks, run.checksum, run.sizes) == (4, 12, expected, (4,))
    assert checks == [(4, sizes)] * 5  # 12 chunks by 2 workers are 6 iterations
    assert [line[0] for line in written(program, "malleable")] == [str(chunk) for chunk in range(12)]


@needs_mpi
def test_workers_manager_and_writer_change_with_the_number_of_processes(program: Path, expected: str) -> None:
    """Figures 5 and 7, listing 2: no read is lost or aligned twice, whoever was manager or writer before."""
    plan = iter([6, 4, 4, 3, 5])

    def planned(pid: int, size: int, sizes: SizeRange) -> Answer:
        return Answer.between(size, next(plan, size))

    sizes = SizeRange(3, 4, 6)
    run = aligner.run(program, "malleable", 4, READS, sizes=sizes, decide=planned)
    assert run.sizes == (4, 6, 4, 3, 5)
    assert (run.processes, run.chunks, run.checksum) == (5, 16, expected)
    lines = written(program, "malleable")
    assert [int(line[0]) for line in lines] == list(range(16))
    assert sum(int(line[1]) for line in lines) == READS


@needs_mpi
def test_invalid_processes_are_refused_and_a_failed_run_is_reported(program: Path, tmp_path: Path) -> None:
    for version, processes, reads in (("original", 1, 9), ("malleable", 2, 9), ("malleable", 3, 0)):
        with pytest.raises(InputError, match="are invalid"):
            aligner.run(program, version, processes, reads)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 1"):
        aligner.overhead(1, 100, 0, 1)
    copy = tmp_path / "aligner"
    shutil.copy(program, copy)
    copy.with_suffix(".original").mkdir()  # in place of the file of the writer
    with pytest.raises(TestbedError, match=r"has failed with status .*Is a directory"):
        aligner.run(copy, "original", 2, 100)


@pytest.mark.slow
@needs_mpi
def test_the_command_prints_the_pairs_and_the_ratio_of_their_medians() -> None:
    words = ["nodes", "bench", "aligner", "--set", "reads=5000", "--set", "chunks=2"]
    done = CliRunner().invoke(tracebed, [*words, "--set", "pairs=2", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["schema"], document["chunks"], len(document["pairs"])) == ("tracebed-bench-aligner/1", 2, 2)
    both = [[pair[version] for pair in document["pairs"]] for version in ("original", "malleable")]
    assert [[run["processes"] for run in runs] for runs in both] == [[2, 2], [3, 3]]
    assert [run["chunks"] for run in both[1]] == [2, 2]
    assert len({run["checksum"] for runs in both for run in runs}) == 1
    before, after = (sum(run["seconds"] for run in runs) / 2 for runs in both)
    overhead = document["wall_overhead"]
    assert overhead["medians"] == pytest.approx(after / before - 1)
    ratios = [late["seconds"] / early["seconds"] - 1 for early, late in zip(*both, strict=True)]
    assert min(ratios) <= overhead["low"] <= overhead["high"] <= max(ratios)
    done = CliRunner().invoke(tracebed, [*words, "--set", "pairs=1"])
    assert "Malleable against original, medians (middle half of the pairs):" in done.stdout
