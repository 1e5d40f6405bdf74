"""Compiled forms of policies: the classes that engine.c decides for, and what engine.c is given of their parameters.

A policy gets its compiled form by one entry of `FORMS` and by a function in C (docs/explanation/engine.md). No policy
is imported here, so that a simulation loads its own policy only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.names import OF_LAYER
from tracebed.orchestrator.scheduling.state import Policy

INT32_MAX = 2**31 - 1
"""Largest number of nodes or cores in the engine."""
SD_FIELDS = {
    *("max_slowdown", "sharing_factor", "mates", "candidates", "include_free_nodes", "inside"),
    *("depth", "backfill_interval_s", "if_earlier", "partial", "weighted", "keep_plan"),
    *("bf_window", "bf_resolution", "bf_node_space_size", "bf_max_job_user"),
}
"""The parameters of `sd` in the engine. Another one must have its default."""
SEED = "seed"
"""The parameter of `slurm` that the engine does not need: it is drawn from before the simulation."""

Numbers: TypeAlias = Mapping[str, Mapping[str, int]]
"""Enumeration in base.h -> name -> number."""


class Form(NamedTuple):
    """Compiled form of a policy."""

    name: str
    """Name in `POLICY` of base.h."""
    parameters: Callable[[Any, Jobs, Numbers], dict[str, Any]] = lambda policy, jobs, numbers: {}
    """Function from the policy to its fields in `PARAMETERS` of base.h. The fields of other policies are 0."""
    obstacle: Callable[[Any], str] = lambda policy: ""
    """Function from the policy to the reason why the engine does not support its parameters; empty if it does."""


def form_of(policy: Policy) -> Form | None:
    """Return the compiled form of a policy; None without one."""
    kind = type(policy)
    return FORMS.get(f"{kind.__module__}:{kind.__qualname__}")


def _easy(policy: Any, jobs: Jobs, numbers: Numbers) -> dict[str, Any]:
    return {"named_nodes": policy.reserve == "nodes"}


def _conservative(policy: Any, jobs: Jobs, numbers: Numbers) -> dict[str, Any]:
    return {
        "backfill_depth": policy.backfill_depth,
        "backfill_interval_s": policy.backfill_interval_s,
        "named_nodes": policy.reserve == "nodes",
    }


def _conservative_obstacle(policy: Any) -> str:
    large = policy.backfill_depth > INT32_MAX
    return f"the compiled engine supports a backfill_depth of at most {INT32_MAX}" if large else ""


def _kassel(policy: Any, jobs: Jobs, numbers: Numbers) -> dict[str, Any]:
    return {
        "first_fit_only": policy.backfill == "firstfit",
        "plan_by_limit": policy.expected_end == "limit",
        "ties_by_id": policy.ties == "id",
        **{name: getattr(policy, name) for name in ("grow_at_start", "narrow", "spread", "if_idle", "straight")},
        **{name: numbers[name][getattr(policy, name).upper()] for name in ("count_idle", "promise", "calls")},
    }


def _dmr(policy: Any, jobs: Jobs, numbers: Numbers) -> dict[str, Any]:
    return {"shrinks_below_pref": policy.floor == "min"}


def _dmr_obstacle(policy: Any) -> str:
    return "" if policy.sizes == "any" else f"the compiled engine does not support sizes={policy.sizes}"


def _sd(policy: Any, jobs: Jobs, numbers: Numbers) -> dict[str, Any]:
    return {
        "max_slowdown": math.nan if policy.follows_running_jobs else float(policy.max_slowdown),
        "slowdown_quantile": policy.quantile or 0.0,
        "inside": numbers["inside"][policy.inside.upper()],
        "mates": min(policy.mates, INT32_MAX),
        "candidates": min(policy.candidates, INT32_MAX),
        "backfill_depth": min(policy.depth, INT32_MAX),
        "window_s": 60.0 * policy.bf_window,
        "resolution_s": float(policy.bf_resolution),
        "slots": min(policy.bf_node_space_size, INT32_MAX),
        "most_of_user": min(policy.bf_max_job_user, INT32_MAX),
        "user": _users(jobs) if policy.bf_max_job_user else None,
        **{name: getattr(policy, name) for name in ("sharing_factor", "include_free_nodes", "backfill_interval_s")},
        **{name: getattr(policy, name) for name in ("if_earlier", "partial", "weighted", "keep_plan")},
    }


def _sd_obstacle(policy: Any) -> str:
    for field in fields(policy):
        if field.name not in SD_FIELDS and getattr(policy, field.name) != field.default:
            return f"the compiled engine does not support {field.name}={getattr(policy, field.name)}"
    return ""


def _drom_share(policy: Any, jobs: Jobs, numbers: Numbers) -> dict[str, Any]:
    return {"serial": policy.mode == "serial", "as_asked": policy.split == "asked"}


def _slurm(policy: Any, jobs: Jobs, numbers: Numbers) -> dict[str, Any]:
    return {**_of_equal_nodes(policy), "user": _users(jobs) if policy.bf_max_job_user else None}


def _slurm_obstacle(policy: Any) -> str:
    large = max(_of_equal_nodes(policy).values()) > INT32_MAX
    return f"the compiled engine supports parameters of slurm of at most {INT32_MAX}" if large else ""


def _of_equal_nodes(policy: Any) -> dict[str, float]:
    """Return the parameters of `slurm` in the engine."""
    return {field.name: getattr(policy, field.name) for field in fields(policy) if field.name not in (SEED, *OF_LAYER)}


def _users(jobs: Jobs) -> Any:
    """Return the number of the user of each job, shape (jobs,)."""
    return np.unique(jobs.user, return_inverse=True)[1]


_POLICIES = "tracebed.orchestrator.scheduling.policies"
_PREF = Form("PREF", _kassel)
FORMS: dict[str, Form] = {
    f"{_POLICIES}.fcfs:Fcfs": Form("FCFS"),
    f"{_POLICIES}.firstfit:FirstFit": Form("FIRSTFIT"),
    f"{_POLICIES}.easy:Easy": Form("EASY", _easy),
    f"{_POLICIES}.conservative:Conservative": Form("CONSERVATIVE", _conservative, _conservative_obstacle),
    **{f"{_POLICIES}.kassel:{name}": _PREF for name in ("Pref", "Min", "KeepPref")},  # they differ in `view` only
    f"{_POLICIES}.kassel:Avg": Form("AVG", _kassel),
    f"{_POLICIES}.dmr:Dmr": Form("DMR", _dmr, _dmr_obstacle),
    f"{_POLICIES}.sd:SlowdownDriven": Form("SD", _sd, _sd_obstacle),
    f"{_POLICIES}.drom:DromShare": Form("DROM_SHARE", _drom_share),
    f"{_POLICIES}.slurm:Slurm": Form("SLURM", _slurm, _slurm_obstacle),
}
"""Class of a policy, as in its entry point -> compiled form. Derived classes have none: they may decide differently."""
