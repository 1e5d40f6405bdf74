"""Duration of cleaning, compared with the lower bound: reading and parsing the bytes alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.performance import pbs_log
from tests.performance.large_runs import eagle_log, make

ELEVEN_MILLION = 11_000_000
MEASURED = """
import resource, subprocess, sys
if (status := subprocess.run(sys.argv[1:]).returncode) not in (0, 3):  # 3: the verdict is inconclusive
    sys.exit(status)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def command(benchmark: Any, *words: str, rounds: int = 3) -> None:
    """Measure a whole command with its peak memory (MiB)."""
    line = [sys.executable, "-c", MEASURED, str(Path(sys.executable).with_name("tracebed")), *words]

    def run() -> int:
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        return int(done.stdout.splitlines()[-1])

    benchmark.extra_info["peak_mib"] = benchmark.pedantic(run, rounds=rounds)


def test_clean_knl(benchmark: Any, reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    raw = str(reference_data("logs/cori-knl"))
    command(benchmark, "clean", raw, "--recipe", "cori-knl", "-o", str(tmp_path / "knl.parquet"))
    assert pq.read_metadata(tmp_path / "knl.parquet").num_rows == 41_524


def test_convert_ricc(benchmark: Any, reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    command(benchmark, "convert", str(reference_data("logs/RICC-2010-2.swf.gz")), "-o", str(tmp_path / "r.parquet"))


@pytest.mark.parametrize("every_kind", [False, True], ids=["ended", "every_kind"])
def test_convert_pbs(benchmark: Any, every_kind: bool, tmp_path: Path) -> None:
    """200,000 records of PBS Pro and Torque, of which all or a third end a job."""
    jobs = 67_000 if every_kind else 200_000
    assert pbs_log.write(tmp_path / "20210301", jobs, every_kind) >= 200_000
    command(benchmark, "convert", str(tmp_path / "20210301"), "-o", str(tmp_path / "p.parquet"), "--replace")
    assert pq.read_metadata(tmp_path / "p.parquet").num_rows >= jobs


def test_floor_of_ricc(benchmark: Any, reference_data: Callable[[str], Path]) -> None:
    """Decompress and parse numbers with pandas' C parser."""
    path = reference_data("logs/RICC-2010-2.swf.gz")
    options: dict[str, Any] = {"sep": r"\s+", "comment": ";", "header": None, "compression": "gzip"}
    assert len(benchmark.pedantic(pd.read_csv, (path,), options, rounds=3)) == 447_794


@pytest.fixture(scope="module")
def eagle(reference_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log of Eagle's full size: rows drawn from the sample, submitted over four years, ids in pairs."""
    path = tmp_path_factory.mktemp("eagle") / "eagle.csv.gz"
    return eagle_log(reference_data("logs/eagle_sample_1000.csv"), ELEVEN_MILLION, path)


def test_clean_eagle_at_full_size(benchmark: Any, eagle: Path, tmp_path: Path) -> None:
    command(benchmark, "clean", str(eagle), "--recipe", "eagle", "-o", str(tmp_path / "e.parquet"), rounds=1)
    assert pq.read_metadata(tmp_path / "e.parquet").num_rows > 10_900_000
    assert benchmark.extra_info["peak_mib"] < 4096


def test_floor_of_eagle(benchmark: Any, eagle: Path) -> None:
    """Decompress and parse every column with Arrow."""

    def parse() -> int:
        return int(pyarrow.csv.read_csv(str(eagle)).num_rows)

    assert benchmark.pedantic(parse, rounds=1) == ELEVEN_MILLION


@pytest.mark.parametrize(("policy", "jobs"), [("easy", 1_000_000), ("pref", 200_000)])
def test_simulate_large_workloads(
    benchmark: Any, reference_data: Callable[[str], Path], tmp_path: Path, policy: str, jobs: int
) -> None:
    """A whole command with its peak memory; `python -m tests.performance.large_runs` makes ten million jobs."""
    made = make(policy, jobs, tmp_path / "w.parquet", reference_data("logs/eagle_sample_1000.csv"))
    command(benchmark, "simulate", str(made), "--policy", policy, "-o", str(tmp_path / "run"), rounds=1)
    assert benchmark.extra_info["peak_mib"] < 1000


@pytest.mark.parametrize(
    "words",
    ["metrics run --report page.html", "compare --real log --predicted run"],
    ids=["page", "verdict"],
)
def test_read_runs_of_a_million_jobs(
    benchmark: Any,
    reference_data: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
) -> None:
    """The page of a run, and the verdict on it beside a copy that is marked as a log, with the peak memory."""
    monkeypatch.chdir(tmp_path)
    make("easy", 1_000_000, tmp_path / "w.parquet", reference_data("logs/eagle_sample_1000.csv"))
    program = Path(sys.executable).with_name("tracebed")
    subprocess.run([program, "simulate", "w.parquet", "--policy", "easy", "-o", "run"], check=True, capture_output=True)
    shutil.copytree("run", "log")
    facts = json.loads(Path("run", "run.json").read_text(encoding="utf-8"))
    Path("log", "run.json").write_text(json.dumps(facts | {"source": "log", "execution": "logged"}), encoding="utf-8")
    command(benchmark, *words.split(), rounds=1)
    assert benchmark.extra_info["peak_mib"] < 1300
