"""What-if against a real Slurm: two settings that were changed for real, each replayed three times.

`python -m tests.recorders.record_slurm_shared FILE --seed 2 --runs 3 --change OLD NEW` recorded the runs after the
change, the workload and runs before it are those of the recording `shared-2`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracebed.api as tb
from tests.slurm.test_slurm_shared import recorded, workload_of
from tracebed.converters.workload import FloatArray, Workload
from tracebed.operators.whatif.classes import Answer

FOLDER = Path(__file__).parents[1] / "slurm_recordings" / "whatif"
BEFORE = recorded("shared-2")
CHANGES = {"bf_max_job_test": "bf_max_job_test=3", "tier": "Partition.short.PriorityTier=1"}
"""Recording of the runs after a change -> the change."""
LOGS = range(len(BEFORE["runs"]))
INCONCLUSIVE = {("tier", 2)}
"""The changes whose interval, on one of the three logs, includes no change."""


@cache
def after(name: str) -> list[dict[str, Any]]:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    assert content["change"] == CHANGES[name]
    runs: list[dict[str, Any]] = content["runs"]
    return runs


def waits(runs: list[dict[str, Any]]) -> FloatArray:
    """Return the waits of the jobs in runs, s, shape (runs, jobs)."""
    return np.array([np.maximum(0.0, np.array(run["start"]) - np.array(run["asked"])) for run in runs])


def log_of(number: int) -> Workload:
    """Return a run before the change as a log."""
    run, workload = BEFORE["runs"][number], workload_of(BEFORE)
    zero = run["asked"][0]
    asked = np.array(run["asked"]) - zero
    table = workload.table.assign(
        submit_time=asked,
        logged_start=np.maximum(np.array(run["start"]) - zero, asked),
        logged_end=np.array(run["end"]) - zero,
    )
    return Workload(table, replace(workload.provenance, unix_start=zero))


@cache
def answer(name: str, number: int) -> tb.WhatIf:
    path = FOLDER / "slurm.conf"
    assert path.read_text() == BEFORE["conf"]
    return tb.whatif(log_of(number), path, settings=[CHANGES[name]])


@pytest.mark.parametrize("number", LOGS)
@pytest.mark.parametrize("name", CHANGES)
def test_the_sign_and_the_size_of_a_real_effect_are_predicted(name: str, number: int) -> None:
    found = answer(name, number)
    assert found.classes[0].answer is (Answer.CHANCE if (name, number) in INCONCLUSIVE else Answer.RISE)
    assert found.classes[0].shares[0] > 0
    assert found.classes[0].error < 0.2
    judged = np.isin(workload_of(BEFORE).table["job_id"], found.jobs["job_id"])
    for each in found.classes:
        if each.by not in ("all", "partition") or each.answer not in (Answer.FALL, Answer.RISE):
            continue
        of_class = judged.copy()
        if each.by == "partition":
            of_class &= (workload_of(BEFORE).table["partition"] == each.name).to_numpy()
        before, changed = (waits(runs)[:, of_class].mean() for runs in (BEFORE["runs"], after(name)))
        real = changed / before - 1
        assert np.sign(real) == np.sign(each.shares[0]), each.sentence
        assert each.shares[1] <= real <= each.shares[2], (real, each.sentence)
