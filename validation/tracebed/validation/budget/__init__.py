"""Error budgets: the causes of the difference of a prediction from a real run (docs/explanation/error-budget.md)."""

from tracebed.validation.budget.budget import ErrorBudget, error_budget
from tracebed.validation.budget.steps import STEPS, Remainder, Repeated, Step

__all__ = ["STEPS", "ErrorBudget", "Remainder", "Repeated", "Step", "error_budget"]
