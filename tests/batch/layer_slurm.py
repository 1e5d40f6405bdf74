"""A real Slurm of three partitions whose jobs may be resized, jobs for it, and what it says of them after a replay."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

import tracebed.api as tb
from tests.oracles.accounting import prefix_of
from tests.patience import GUARD_S
from tests.recorders.record_slurm_mixed import CONF, HIGH, MixedSlurm
from tests.servers.slurmd import Slurm, exclusive, release, settings_of
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.slurm.resize_layer import LOSES

SETTINGS = settings_of(CONF)
SETTINGS |= {"SchedulerParameters": f"{SETTINGS['SchedulerParameters']},permit_job_expansion", "KillWait": "1"}
ACCOUNTS = {"daemon": "physics", "games": "biology"}
"""User of each Debian -> account."""


class LayerSlurm(MixedSlurm):
    """A Slurm of three partitions, and one with exclusive jobs, with the users of `ACCOUNTS`. Jobs may expand.

    From Slurm 24.11 on, only exclusive jobs do, and not on a cluster with generic resources. So there are none then.
    """

    def _serve_accounting(self) -> None:
        Slurm._serve_accounting(self)
        self("sacctmgr", "-i", *HIGH.split())
        for user, account in ACCOUNTS.items():
            self("sacctmgr", "-i", "add", "account", account, "cluster=trial")
            self("sacctmgr", "-i", "add", "user", user, f"account={account}", "cluster=trial", "qos=normal,high")

    def _configure(self) -> None:
        super()._configure()
        text = self.conf.read_text() + f"PartitionName=alone Nodes=n[1-5] {exclusive()} DefMemPerCPU=1000\n"
        self.conf.write_text(text if release() < LOSES else re.sub(r" Gres=\S+|GresTypes=.*\n", "", text))


@contextmanager
def started(name: str) -> Iterator[LayerSlurm]:
    """Yield a Slurm whose jobs can be resized. Its folder is in one that all users can enter."""
    folder = Path(tempfile.mkdtemp(prefix=f"tracebed-{name}-"))
    folder.chmod(0o755)
    cluster = LayerSlurm(folder / "slurm", nodes=8, cores=4, accounting=True, settings=SETTINGS)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(folder)


def jobs(*rows: dict[str, object]) -> Workload:
    """Return a workload. Jobs are rigid and of `daemon`, on whole small nodes of the partition main, by default."""
    default: dict[str, object] = {
        **{"run_time": 6.0, "time_limit": 300.0, "nodes": 1, "cores_per_node": 4, "kind": "rigid", "speedup": ""},
        **{"speedup_parameters": "", "user": "daemon", "group": "physics", "queue": "normal", "partition": "main"},
        **{"features": "small", "gres": "", "memory_mib": 1000.0},
    }
    table = pd.DataFrame([{**default, "job_id": f"j{number}", **row} for number, row in enumerate(rows)])
    for name, otherwise in (("nodes_min", "nodes"), ("nodes_max", "nodes"), ("nodes_pref", "nodes")):
        table[name] = table[name].fillna(table[otherwise]) if name in table else table[otherwise]
    return Workload(table, Provenance(system=System(8, 8)))


def malleable(nodes: int, least: int, **row: object) -> dict[str, object]:
    """Return the columns of a malleable job."""
    sizes = {"nodes": nodes, "nodes_min": least, "nodes_max": 2 * nodes, "kind": "malleable"}
    return {**sizes, "speedup": "amdahl", "speedup_parameters": "1.0", **row}


def accounted(slurm: Slurm, run: tb.Run) -> pd.DataFrame:
    """Return what `sacct` has about the first size of each job of a run."""
    fields = ["JobName", "User", "Account", "QOS", "Partition", "AllocCPUS", "NNodes", "ReqMem", "ReqTRES", "State"]
    text = slurm("sacct", "-D", "-X", "-n", "-P", "-o", ",".join(fields), "-S", "now-1day")
    rows = [line.split("|") for line in text.splitlines() if line.startswith(prefix_of(run))]
    table = pd.DataFrame(rows, columns=fields)
    table = table[~table["JobName"].str.contains("+", regex=False)].drop_duplicates("JobName")
    return table.set_index(table["JobName"].str.rpartition("-")[2].astype(int)).sort_index()


def check_no_expander_is_left(slurm: Slurm, run: tb.Run) -> None:
    """Raise AssertionError if a job waits or runs, a job ran twice, or a node has two jobs or is allocated."""
    slurm.until(lambda: not slurm("squeue", "-h").strip(), "jobs are left")
    names = [name for name in slurm("squeue", "-h", "-t", "all", "-o", "%j").split() if name.startswith(prefix_of(run))]
    own = [name for name in names if "+" not in name]
    assert len(own) == len({*own})
    assert tb.Run.load(run.folder).jobs.equals(run.jobs)
    slurm.until(lambda: slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "8", "nodes stay allocated")


def killed(
    slurm: Slurm, workload: Workload, output: Path, options: Sequence[str], reached: Callable[[], bool], what: str
) -> Callable[[], tb.Run]:
    """Start a replay by the command line, and kill it when a state is `reached`. Return a function that resumes it."""
    file = output.with_suffix(".parquet")
    tb.write(workload, file)
    command = [str(Path(sys.executable).with_name("tracebed")), "replay", str(file), "--scheduler", "slurm"]
    command += [*options, "-o", str(output)]
    environment = {**os.environ, "SLURM_CONF": str(slurm.conf)}
    with output.with_suffix(".err").open("w+") as said:
        replay = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said)

    def is_reached() -> bool:
        assert replay.poll() is None, f"the replay has ended: {output.with_suffix('.err').read_text()}"
        return reached()

    slurm.until(is_reached, what)
    replay.send_signal(signal.SIGKILL)
    replay.wait()

    def resumed() -> tb.Run:
        done = subprocess.run([*command, "--resume"], env=environment, timeout=GUARD_S, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tb.Run.load(output)

    return resumed
