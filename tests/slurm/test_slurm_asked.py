"""The jobs of a workload as the cluster of a slurm.conf is asked for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracebed.converters.workload import Provenance, Step, Workload
from tracebed.ground.errors import InputError
from tracebed.slurm.conf_lines import lines_of
from tracebed.slurm.machine import SlurmCluster, machine_of
from tracebed.slurm.simulation.demands import NO_LIMIT, SEVERAL_KINDS, YEAR_S, as_asked

CONF = """NodeName=a[1-2] Sockets=2 CoresPerSocket=4 ThreadsPerCore=2
NodeName=b1 CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=2
PartitionName=a Nodes=a[1-2] MaxTime=60 Default=YES DefaultTime=NONE
PartitionName=b Nodes=b1 MaxTime=INFINITE
PartitionName=all Nodes=ALL MaxTime=30
"""


def machine(folder: Path) -> SlurmCluster:
    path = folder / "slurm.conf"
    path.write_text(CONF)
    found = machine_of(lines_of(path), path)
    assert found is not None
    return found


def jobs(*steps: Step) -> Workload:
    table = {
        "job_id": ["1", "2", "3", "4", "5"],
        "submit_time": [0.0, 1.0, 2.0, 3.0, 4.0],
        "run_time": [10.0, 10.0, 10.0, np.nan, 10.0],
        "nodes": [1] * 5,
        "cores_per_node": [7] * 5,
        "partition": ["a", "b", "all", "", "gone"],
        "time_limit": [np.nan, np.nan, 600.0, np.nan, np.nan],
    }
    return Workload(pd.DataFrame(table), Provenance(steps=steps))


def test_a_job_without_a_limit_has_that_of_its_partition(tmp_path: Path) -> None:
    asked, counts = as_asked(jobs(), machine(tmp_path))
    assert asked.floats("time_limit").tolist() == [3600.0, YEAR_S, 600.0, 3600.0, YEAR_S]
    assert counts == {NO_LIMIT: 3, SEVERAL_KINDS: 0, "jobs of partitions that the cluster lacks (gone), rejected": 1}
    assert asked.ints("cores_per_node").tolist() == [7] * 5


def test_a_job_without_a_limit_has_the_default_of_its_partition_unless_it_ran_longer(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF.replace("DefaultTime=NONE", "DefaultTime=10"))
    cluster = machine_of(lines_of(path), path)
    assert cluster is not None
    log = jobs()
    log = Workload(log.table.assign(partition="a", run_time=[10.0, 620.0, 700.0, np.nan, 10.0]), log.provenance)
    assert as_asked(log, cluster)[0].floats("time_limit").tolist() == [600.0, 600.0, 600.0, 600.0, 600.0]
    log = Workload(log.table.assign(time_limit=np.nan), log.provenance)
    assert as_asked(log, cluster)[0].floats("time_limit").tolist() == [600.0, 600.0, 3600.0, 600.0, 600.0]


def test_features_of_several_kinds_of_nodes_are_counted(tmp_path: Path) -> None:
    log = jobs()
    table = log.table.assign(features=["[x|y]", "x*2", "x", "", "x|y"], nodes=[1, 2, 2, 1, 2])
    assert as_asked(Workload(table, log.provenance), machine(tmp_path))[1][SEVERAL_KINDS] == 1


def test_a_log_of_slurm_counts_cpus_and_a_core_has_some(tmp_path: Path) -> None:
    """On nodes of unlike cores, the simulation counts CPUs. Slurm does not allocate the hardware threads of b1."""
    log = jobs(Step("read", {"format": "sacct", "by": "node"}))
    unlike = machine(tmp_path)
    assert unlike.cpus_per_core == 1
    assert [unlike.cores_of(kind) for kind in unlike.kinds] == [16, 8]
    assert as_asked(log, unlike)[0].ints("cores_per_node").tolist() == [7] * 5
    path = tmp_path / "slurm.conf"
    path.write_text(CONF.replace("CPUs=8 Sockets=1", "Sockets=1"))
    alike = machine_of(lines_of(path), path)
    assert alike is not None
    assert alike.cpus_per_core == 2
    assert as_asked(log, alike)[0].ints("cores_per_node").tolist() == [4] * 5
    for step in (Step("whatif"), Step("whatif", {"cpus_per_core": 2})):  # has cores already
        whatif = jobs(Step("read", {"format": "sacct", "by": "node"}), step)
        assert as_asked(whatif, alike)[0].ints("cores_per_node").tolist() == [7] * 5
    assert as_asked(whatif, unlike)[0].ints("cores_per_node").tolist() == [14] * 5  # CPUs of the changed cluster


def test_a_node_for_each_core_is_no_job_of_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="each node of the workload is one core"):
        as_asked(jobs(Step("read", {"format": "sacct", "by": "core"})), machine(tmp_path))


def test_a_job_with_a_share_of_its_nodes_has_that_share_of_the_cores(tmp_path: Path) -> None:
    log = jobs()
    table = log.table.assign(extra_node_share=[0.5, np.nan, 0.01, 1.0, 3 / 7])
    asked, _ = as_asked(Workload(table, log.provenance), machine(tmp_path))
    assert asked.ints("cores_per_node").tolist() == [4, 7, 1, 7, 3]
