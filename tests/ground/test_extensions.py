"""Third-party formats and models: a package with entry points is enough, without changes to tracebed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracebed.api as tb
from tests import packages

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/api.md"
MODULE = '''
"""A format of lines such as `submit run nodes`, and a model of equal jobs."""

import pandas as pd

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.workload import Provenance, Step, System, Workload


def recognizes(file):
    return file.head.startswith(b"%triples")


def read(file, *, minutes: bool = False):
    rows = [[float(word) for word in line.split()] for _, line in file.lines() if not line.startswith("%")]
    table = pd.DataFrame(rows, columns=["submit_time", "run_time", "nodes"])
    table["job_id"] = [str(row) for row in range(len(rows))]
    return Workload(table, Provenance(sources=(file.source,), steps=(Step("read", {"format": "triples"}),)))


def write(workload, file):
    file.write(b"%triples\\n")
    for columns in zip(*(workload.column(name) for name in ("submit_time", "run_time", "nodes"))):
        file.write(("%g %g %d\\n" % columns).encode())


FORMAT = Format("triples", "lines of three numbers", recognizes, suffixes=(".triples",), read=read, write=write)


def equal(jobs: int, *, nodes: int = 4, cores_per_node: int = 1, seed: int = 0, run_time: float = 60.0) -> Workload:
    """Draw equal jobs.

    Args:
        jobs: how many.
        nodes: of the machine.
        cores_per_node: of the machine.
        seed: unused.
        run_time: of each job, s.
    """
    table = pd.DataFrame({"job_id": [str(job) for job in range(jobs)], "submit_time": 0.0, "run_time": run_time})
    table["nodes"] = 1
    return Workload(table, Provenance(system=System(nodes, cores_per_node)))
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entry_points = {
        "tracebed.formats": {"triples": "triples:FORMAT", "broken": "no_such_module:FORMAT"},
        "tracebed.models": {"equal": "triples:equal"},
    }
    return packages.install(tmp_path_factory.mktemp("triples"), {"triples.py": MODULE}, entry_points)


def test_a_format_of_another_package_is_recognized_read_and_written(site: Path, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("%triples\n0 10 1\n5 20 2\n")
    done = packages.tracebed(site, "convert", "log.txt", "-o", "w.triples", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"] == 2
    assert (tmp_path / "w.triples").read_text() == "%triples\n0 10 1\n5 20 2\n"
    assert "format broken cannot be loaded" in done.stderr, "the others are known nonetheless"
    done = packages.tracebed(site, "convert", "log.txt", "--from", "triplets", "-o", "w.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean triples?" in done.stderr


def test_a_model_of_another_package_is_listed_and_drawn(site: Path, tmp_path: Path) -> None:
    listed = packages.tracebed(site, "generate", "--help", cwd=tmp_path).stdout
    assert "equal                Draw equal jobs." in listed
    words = "generate equal --jobs 3 --set run_time=5 -o w.csv --json"
    done = packages.tracebed(site, *words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"] == 3
    assert (tmp_path / "w.csv").read_text().count(",5,1") == 3


def test_the_command_of_the_page_runs(tmp_path: Path) -> None:
    files = packages.files_of(PAGE)
    assert {*files} == {"waits.py"}
    site = packages.install(tmp_path / "waits", files, {"tracebed.commands": {"waits": "waits:waits"}})
    run = tb.simulate(tb.generate("cirne", jobs=30, nodes=16, seed=3), "easy")
    run.save(tmp_path / "runs/sim")
    assert "Print the mean wait of a run." in packages.tracebed(site, "--help", cwd=tmp_path).stdout
    assert "Example:\n    tracebed waits runs/sim" in packages.tracebed(site, "waits", "--help", cwd=tmp_path).stdout
    done = packages.tracebed(site, "waits", "runs/sim", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"mean_wait_s": run.metrics()["mean_wait_s"]}
    assert packages.tracebed(site, "waits", "runs/sim", cwd=tmp_path).stdout.startswith("mean wait: ")
