"""The decisions of the scheduler of a run, from its tables: starts and resizes, with times and nodes.

The tables of any run suffice: those of a replay, of a log, and of another simulator.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.ground.states import JobState
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin

ROUNDING_S = 1e-6
"""Rounding error of times, s."""
COLUMNS = ["job_id", "number", "time", "kind", "nodes_from", "nodes_to"]


class Decisions:
    """The decisions of a run, the events that may trigger decisions, and idle nodes and waiting jobs over time.

    Times are s after the first submission of the run.
    """

    def __init__(self, run: Run) -> None:
        """Read the decisions of `run`."""
        self.run = run
        self._zero = origin(run)

    def table(self, *, from_allocations: bool = False) -> pd.DataFrame:
        """Return a row per decision: job_id, number (0: the start; k: the k-th resize of the job), time, kind (start,
        expand or shrink), nodes_from and nodes_to.

        Args:
            from_allocations: take the resizes from the changes of allocations, not from the reconfigurations.
        """
        resizes = self.steps[self.steps["number"] > 0] if from_allocations else self._reconfigured()
        return pd.concat([self._starts(resizes), resizes], ignore_index=True)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Changes of the number of nodes of each job, except its end, with the columns of `table`."""
        rows = self.run.allocations
        ends = rows[rows["end"].notna()]
        changes = pd.DataFrame(
            {
                "job_id": pd.concat([rows["job_id"], ends["job_id"]], ignore_index=True),
                "time": np.concatenate((rows["start"], ends["end"])) - self._zero,
                "change": np.concatenate((rows["count"], -ends["count"])),
            }
        )
        changes = changes.groupby(["job_id", "time"], sort=True)["change"].sum().reset_index()
        changes = changes[changes["change"] != 0]
        held = changes.groupby("job_id", sort=False)["change"].cumsum()
        changes = changes.assign(nodes_to=held, nodes_from=held - changes["change"])[held > 0]
        changes["number"] = changes.groupby("job_id", sort=False).cumcount()
        changes["kind"] = np.where(changes["change"] > 0, "expand", "shrink")
        return changes[COLUMNS]

    def _starts(self, resizes: pd.DataFrame) -> pd.DataFrame:
        """Return the starts. A job may be resized in the instant of its start, so its first resize names the nodes."""
        jobs = self.run.jobs[self.run.jobs["start"].notna()]
        before = resizes[resizes["number"] == 1].set_index("job_id")["nodes_from"]
        first = self.steps[self.steps["number"] == 0].set_index("job_id")["nodes_to"]
        known = jobs["job_id"].map(before).fillna(jobs["job_id"].map(first))
        nodes = known.fillna(jobs["nodes"]).astype("int64")
        facts = {"job_id": jobs["job_id"], "number": 0, "time": jobs["start"] - self._zero, "kind": "start"}
        return pd.DataFrame(facts | {"nodes_from": 0, "nodes_to": nodes})

    def _reconfigured(self) -> pd.DataFrame:
        rows = self.run.resizes.sort_values("asked", kind="stable")
        number = rows.groupby("job_id", sort=False).cumcount() + 1
        return rows.assign(number=number, time=rows["asked"] - self._zero)[COLUMNS]

    @cached_property
    def events(self) -> pd.DataFrame:
        """Events that may trigger a decision: job_id, what (`submit`, `end`, or the k-th resize that ended), time."""
        jobs, resized = self.run.jobs, self._reconfigured()
        found = [jobs[["job_id"]].assign(what=what, time=jobs[what] - self._zero) for what in ("submit", "end")]
        ended = self.run.reconfigurations["ended"].reindex(resized.index) - self._zero
        found.append(resized[["job_id"]].assign(what="resize " + resized["number"].astype(str), time=ended))
        return pd.concat(found, ignore_index=True).dropna(subset="time")

    def idle_nodes(self, instant: float) -> float:
        """Return the number of idle nodes at an instant, before the decisions of that instant.

        A node with some busy cores counts as a fraction.
        """
        rows, nodes = self.run.allocations, self.run.info.nodes
        start, end = (rows[name].to_numpy(dtype=np.float64) - self._zero for name in ("start", "end"))
        holds = (start < instant - ROUNDING_S) & ~(end <= instant + ROUNDING_S)
        whole = self._cores_of_nodes[rows["node"].to_numpy()[holds]]
        busy = (rows["cores"] * rows["count"]).to_numpy(dtype=np.float64)[holds] / whole
        return float(len(nodes) - busy.sum())

    def waiting_jobs(self, instant: float) -> int:
        """Return the number of waiting jobs at an instant, before the decisions of that instant."""
        jobs = self.run.jobs[self.run.jobs["state"] != JobState.REJECTED]
        submit, start, end = (jobs[name].to_numpy(dtype=np.float64) - self._zero for name in ("submit", "start", "end"))
        gone = (start < instant - ROUNDING_S) | (np.isnan(start) & (end <= instant + ROUNDING_S))
        return int(((submit <= instant + ROUNDING_S) & ~gone).sum())

    def status(self, job_id: str, instant: float) -> str:
        """Return what a job did at an instant, before the decisions of that instant: `still waiting`, `on 4 nodes`."""
        jobs = self.run.jobs[self.run.jobs["job_id"] == job_id]
        if not len(jobs):
            return "not submitted"
        job = jobs.iloc[0]
        if not job["submit"] - self._zero <= instant + ROUNDING_S:
            return "not submitted yet"
        if job["end"] - self._zero <= instant + ROUNDING_S:
            return "ended"
        if not job["start"] - self._zero < instant - ROUNDING_S:
            return "still waiting"
        steps = self.steps[(self.steps["job_id"] == job_id) & (self.steps["time"] <= instant + ROUNDING_S)]
        nodes = int(steps["nodes_to"].iloc[-1]) if len(steps) else int(job["nodes"])
        return f"still on {nodes} node{'' if nodes == 1 else 's'}"

    @cached_property
    def _cores_of_nodes(self) -> FloatArray:
        return np.array([node.cores for node in self.run.info.nodes], dtype=np.float64)
