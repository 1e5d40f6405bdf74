"""The costs of the resizes of applications, from runs whose jobs are programs (`replay -S program=COMMAND`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracebed.orchestrator.calibrating.estimates import LEAST, FloatArray, estimates, least_squares, mean_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.calibration import OverheadEstimate

Costs = dict[str, dict[str, OverheadEstimate]]
"""Application -> its costs, by the names of `calibration.COSTS`."""
COLUMNS = ("application", "kind", "rank", "mib", "pause", "release")


def resizes_of(run: Run, plan: Mapping[str, Any]) -> pd.DataFrame:
    """Return the resizes of programs in a run, with `COLUMNS`.

    `rank` is the number of nodes after the first one that are added or released, `mib` the state. `pause` and `release`
    are wall s: from the malleability point until the job works, and from then on until released nodes are idle.

    Args:
        run: the run.
        plan: the columns of its jobs (`batch.plan.SubmissionPlan`).
    """
    if run.info.batch.get("program") is None or not plan.get("application"):
        return pd.DataFrame(columns=COLUMNS)
    done = run.resizes[(run.resizes["state"] == "applied").to_numpy()]
    numbers = pd.Index(plan["ids"]).get_indexer(done["job_id"])
    columns = (
        np.array(plan["application"], dtype=object)[numbers],
        done["kind"],
        (done["nodes_to"] - done["nodes_from"]).abs() - 1,
        np.array(plan["state_mib"], dtype=np.float64)[numbers],
        (done["applied"] - done["decided"]).clip(lower=0.0) / run.info.speed,
        (done["ended"] - done["applied"]).clip(lower=0.0) / run.info.speed,
    )
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


def costs_of(repetitions: Sequence[pd.DataFrame]) -> Costs:
    """Return the costs of each application with at least `LEAST` resizes of a kind.

    The pause is a least-squares fit over all repetitions: a constant, a time for each further node, and a time for each
    MiB. A number of nodes or a state that does not vary has no time of its own.
    """
    found: Costs = {}
    for (application, kind), rows in pd.concat(repetitions).groupby(["application", "kind"]):
        if len(rows) < LEAST:
            continue
        costs = found.setdefault(str(application), {})
        varying = [name for name in ("rank", "mib") if rows[name].nunique() > 1]
        samples = rows[[*varying, "pause"]].to_numpy(dtype=np.float64)
        names = [f"{kind}_pause_s", *(f"{kind}_pause_{name}_s" for name in varying)]
        costs |= dict(zip(names, estimates([samples], _plane, blocks=1), strict=True))
        if kind == "shrink" and (release := mean_of([rows["release"].to_numpy(dtype=np.float64)])):
            costs["shrink_release_s"] = release
    return found


def predicted(rows: pd.DataFrame, costs: Costs, otherwise: Mapping[str, float]) -> tuple[FloatArray, FloatArray]:
    """Return the pause of each of `resizes_of`, and the time from its malleability point until nodes are idle, wall s.

    The overheads `otherwise` are those of applications without costs.
    """
    pauses, releases = (np.full(len(rows), otherwise.get(name, 0.0)) for name in ("reconfiguration_s", "release_s"))
    for (application, kind), each in rows.reset_index(drop=True).groupby(["application", "kind"]):
        value = {name: one.value for name, one in costs.get(str(application), {}).items()}
        if f"{kind}_pause_s" in value:
            at, rank, mib = each.index, *(each[name].to_numpy(dtype=np.float64) for name in ("rank", "mib"))
            pauses[at] = (
                value[f"{kind}_pause_s"]
                + value.get(f"{kind}_pause_rank_s", 0.0) * rank
                + value.get(f"{kind}_pause_mib_s", 0.0) * mib
            )
            releases[at] = pauses[at] + value.get("shrink_release_s", 0.0)
    return pauses, releases


def _plane(samples: FloatArray) -> FloatArray:
    """Fit the last column by a constant and multiples of the others, none below 0."""
    return least_squares(samples, np.column_stack([np.ones(len(samples)), samples[:, :-1]]))
