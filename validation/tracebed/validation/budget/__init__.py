"""Error budgets: the causes of the difference of a prediction from a real run (docs/explanation/error-budget.md)."""

from tracebed.validation.budget.budget import LABELS, ErrorBudget, error_budget
from tracebed.validation.budget.steps import INTERFERENCE, NOMINAL, OVERHEADS, STEPS, BudgetStep, Remainder, Repeated

__all__ = [
    "INTERFERENCE",
    "LABELS",
    "NOMINAL",
    "OVERHEADS",
    "STEPS",
    "BudgetStep",
    "ErrorBudget",
    "Remainder",
    "Repeated",
    "error_budget",
]
