"""Fit of overheads to real runs, with the cloud of parameter sets that fit equally well."""

from tracebed.validation.fitting.cases import FitCase, cases_of, check_usable
from tracebed.validation.fitting.fit import BUDGET, Fit, Fold, Member, Range, calibration_of, fit
from tracebed.validation.fitting.loss import LOSSES, LossName

__all__ = ["BUDGET", "LOSSES", "Fit", "FitCase", "Fold", "LossName", "Member", "Range"]
__all__ += ["calibration_of", "cases_of", "check_usable", "fit"]
