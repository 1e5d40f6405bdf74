"""Fit of overheads to real runs, with the cloud of parameter sets that fit equally well."""

from tracebed.validation.fitting.cases import Case, cases_of
from tracebed.validation.fitting.fit import BUDGET, Fit, Fold, Member, Range, fit
from tracebed.validation.fitting.loss import LOSSES, LossName

__all__ = ["BUDGET", "LOSSES", "Case", "Fit", "Fold", "LossName", "Member", "Range", "cases_of", "fit"]
