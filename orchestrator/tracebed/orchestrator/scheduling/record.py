"""What happened to each job, as the tables of a run; kept by the simulator and by the replayer alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tracebed.orchestrator.scheduling.cluster import Ledger
from tracebed.orchestrator.scheduling.jobs import Jobs

NEVER = float("nan")
PENDING = ""
RESIZES = ("job", "nodes_from", "nodes_to", "asked", "decided", "applied", "ended", "state")


class Record:
    """Instants and states of all jobs (indexed by job number), and every reconfiguration, in trace seconds."""

    def __init__(self, jobs: Jobs) -> None:
        """Begin with nothing having happened."""
        count = len(jobs)
        self.jobs = jobs
        self.submit = [NEVER] * count
        self.start = [NEVER] * count
        self.launched = [NEVER] * count
        self.end = [NEVER] * count
        self.state = [PENDING] * count
        self.reason = [""] * count
        self._resizes: list[list[float | int | str]] = []  # job, from, to, asked, decided, applied, ended, state
        self.resizes: pd.DataFrame | None = None
        """All of them as a table of the columns `RESIZES`, of who did not note them one by one."""
        self._open: dict[int, int] = {}  # job -> its pending row

    def finish(self, job: int, now: float, state: str, reason: str = "") -> None:
        """Note that `job` ended, started or not."""
        self.end[job] = now
        self.state[job] = state
        self.reason[job] = reason
        self._open.pop(job, None)  # a resize that the end overtook stays cancelled

    def refuse(self, job: int, state: str, reason: str) -> None:
        """Note that `job` will never start."""
        self.state[job] = state
        self.reason[job] = reason

    def resize_asked(self, job: int, before: int, after: int, now: float) -> None:
        """Note that the policy decided a resize."""
        self._open[job] = len(self._resizes)
        self._resizes.append([job, before, after, now, NEVER, NEVER, NEVER, "cancelled"])

    def resize_applied(self, job: int, decided: float, applied: float, ended: float) -> None:
        """Note that the pending resize of `job` took effect."""
        self._resizes[self._open.pop(job)][4:] = [decided, applied, ended, "applied"]

    def tables(self, ledger: Ledger, cores: Sequence[int], cpus: Sequence[Sequence[int]]) -> dict[str, pd.DataFrame]:
        """Return the tables jobs, allocations and reconfigurations of a run (see `run.TABLES`)."""
        jobs = self.jobs
        table = pd.DataFrame(
            {
                "job_id": jobs.ids,
                "kind": jobs.kind,
                "submit_planned": jobs.submit,
                "submit": self.submit,
                "start": self.start,
                "launched": self.launched,
                "end": self.end,
                "state": [state or "unknown" for state in self.state],
                "reason": self.reason,
                "nodes": jobs.nodes,
                "run_time": jobs.run_time,
                "time_limit": jobs.limit,
                "user": jobs.user,
            },
            copy=False,
        )
        resizes = pd.DataFrame(self._resizes, columns=list(RESIZES)) if self.resizes is None else self.resizes
        resizes = resizes.astype(dict.fromkeys(RESIZES[3:7], "float64") | dict.fromkeys(RESIZES[:3], "int64"))
        resizes["job_id"] = np.array(jobs.ids, dtype=object)[resizes["job"].to_numpy()]
        resizes["kind"] = np.where(resizes["nodes_to"] > resizes["nodes_from"], "expand", "shrink")
        return {
            "jobs": table,
            "allocations": ledger.table(jobs.ids, cores, cpus),
            "reconfigurations": resizes,
        }
