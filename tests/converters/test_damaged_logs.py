"""Damaged logs of every format: a reader gives jobs, or an error of one clear line."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.converters import (
    test_batsim,
    test_elastisim,
    test_gwf,
    test_mwf,
    test_pbs,
    test_public_datasets,
    test_sacct,
    test_sacct_exports,
    test_swf,
    test_theta,
    test_ub_slurm,
)
from tests.fuzzing.fuzz import mutated, read_or_refuse

SWF = [test_swf.HEADER + test_swf.JOB, test_swf.ALEA, test_swf.METACENTRUM.replace("1 ", "2 ", 1), test_swf.job(job=3)]
PBS = [*test_pbs.LOG, test_pbs.ended("10.srv", 9, 80, 90, **test_pbs.TORQUE)]
SACCT_JSON = {"jobs": [test_sacct_exports.newer(job) for job in test_sacct_exports.JOBS], "meta": {}}
TEXTS = {
    ("log.swf", "swf"): "\n".join(SWF),
    ("20210301", "pbs"): "\n".join(PBS) + "\n",
    ("log.txt", "sacct"): test_sacct.table(test_sacct.NAMED),
    ("commas.txt", "sacct"): test_sacct.table(test_sacct.ROWS, delimiter=","),
    ("log.json", "sacct"): json.dumps(SACCT_JSON, indent=1),
    ("unknown.txt", None): test_sacct.table(test_sacct.NAMED, end="|"),
    ("theta.csv", "theta"): test_theta.text(test_theta.ROWS),
    ("jobs", "ub-slurm"): test_ub_slurm.JOBS,
    ("events", "ub-slurm"): test_ub_slurm.EVENTS,
}
LOGS: dict[tuple[str, str | None], bytes] = {
    **{file: text.encode() for file, text in TEXTS.items()},
    ("log.gwf", "gwf"): test_gwf.LOG,
    ("log.mwf", "mwf"): test_mwf.LOG,
    ("w.json", "batsim"): test_batsim.VALID,
    ("jobs.json", "elastisim"): test_elastisim.VALID,
    **{("log.csv", name): data for name, data in test_public_datasets.CSV.items()},
    **{("log.parquet", name): test_public_datasets.VALID[name] for name in ("pm100", "fdata")},
}
"""File name and format (None: recognized) -> its valid content."""


@pytest.mark.parametrize(("name", "format"), LOGS)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damage_is_refused_or_tolerated(name: str, format: str | None, data: st.DataObject) -> None:
    read_or_refuse(data.draw(mutated(LOGS[name, format])), name, format)
