"""Conversion of a fit to a calibration file."""

from __future__ import annotations

from datetime import UTC, datetime

from tracebed.ground.version import version
from tracebed.orchestrator.testbeds.calibration import Calibration, FitFold, FitRecord, FittedRuns, OverheadEstimate
from tracebed.validation.fitting.fit import Fit


def calibration_of(fit: Fit, name: str) -> Calibration:
    """Return the calibration with the fitted overheads, their ranges over the cloud, the cloud, and the fit."""
    info = fit.cases[0].info
    runs = sum(len(case.runs) for case in fit.cases)
    fitted = {
        name: OverheadEstimate(
            value=fit.best.values[name], median=item.median, low=item.low, high=item.high, count=runs
        )
        for name, item in fit.ranges.items()
    }
    given = {
        name: OverheadEstimate(value=value, median=value, low=value, high=value, count=0)
        for name, value in fit.known.items()
    }
    return Calibration(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tracebed=version(),
        inventory=str(info.parameters.get("inventory", "")),
        execution="emulated" if info.execution == "emulated" else "computed",
        nodes=len(info.nodes),
        cores=sorted({node.cores for node in info.nodes}),
        host={"name": info.hosts[0].get("name")} if info.hosts else {},
        speed=info.speed,
        grain_s=info.parameters["grain_s"],
        repetitions=min(len(case.runs) for case in fit.cases),
        duty=min(info.duties),
        overheads=fitted | given,
        workloads=sorted({case.workload.sha256 for case in fit.cases}),
        batch=str(info.batch.get("system", "")),
        fit=FitRecord(
            loss=fit.loss_name,
            value=fit.best.loss,
            without_overheads=fit.beside.loss,
            tolerance=fit.tolerance,
            budget=fit.budget,
            seed=fit.seed,
            sets=fit.sets,
            simulations=fit.simulations,
            identified=[name for name, item in fit.ranges.items() if item.identified],
            known=list(fit.known),
            without_effect=list(fit.without_effect),
            runs=[
                FittedRuns(
                    workload=case.name,
                    sha256=case.workload.sha256,
                    policy=case.info.policy,
                    speed=case.info.speed,
                    runs=list(case.runs),
                )
                for case in fit.cases
            ],
            cross_validation=[
                FitFold(
                    workload=fold.workload,
                    overheads=dict(fold.values),
                    loss_in=fold.loss_in,
                    loss_out=fold.loss_out,
                    loss_out_without=fold.loss_out_beside,
                )
                for fold in fit.folds
            ],
        ),
        cloud=[dict(member.values) for member in fit.cloud],
    )
