"""Baselines: files with results of simulators, with which later validations are compared.

A baseline makes the gate of a CI job deterministic: see `tracebed.validation.verdict.acceptance` for the limits, and
`tracebed.validation.verdict.ratchet` for the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tracebed.ground.errors import InputError
from tracebed.ground.stored import StoredFile
from tracebed.ground.version import version
from tracebed.validation.verdict.acceptance import SimulatorBaseline, simulator_baseline, title
from tracebed.validation.verdict.gate import Finding
from tracebed.validation.verdict.ratchet import changed_tolerances, compare
from tracebed.validation.verdict.validation import Validation

LEAST_SEEDS = 5
"""Smallest number of runs of a stochastic simulator in each case."""
GROWTH = 0.01
"""Growth of an error, in margins, above which an update of a baseline is worse than before."""


class Baseline(StoredFile):
    """The results of one or several simulators: acceptance limits and errors."""

    KIND: ClassVar[str] = "baseline"
    HINT: ClassVar[str] = "`tracebed validate --baseline FILE --update-baseline better` writes baselines"

    file_schema: Annotated[Literal["tracebed-baseline/1"], Field(alias="schema")] = "tracebed-baseline/1"
    tracebed: str
    """Version of tracebed."""
    simulators: dict[str, SimulatorBaseline]

    @classmethod
    def of(cls, documents: Iterable[Mapping[str, Any]]) -> Baseline:
        """Return the baseline of validations, one per simulator, each as the JSON values of `Validation.to_json`."""
        simulators = {str(document["simulator"]["name"]): simulator_baseline(document) for document in documents}
        return cls(tracebed=version(), simulators=simulators)

    def updated(self, new: Baseline) -> Baseline:
        """Return this baseline with the simulators of `new` added or replaced."""
        return new.model_copy(update={"simulators": {**self.simulators, **new.simulators}})

    def check(self, validation: Validation) -> list[Finding]:
        """Return the results of one simulator that are worse than the baseline, or cannot be compared.

        A finding fails the gate if a metric was accurate and is outside its acceptance limits, if its error grew by
        more than `Tolerances.ratchet`, or if a case or a gated metric of the baseline is missing.

        Raises:
            InputError: the tolerances differ from those of the baseline, so that the errors have other units.
        """
        name = validation.simulator.name
        if name not in self.simulators:
            return [Finding(name, "", "simulator", f"the baseline does not contain the simulator {name}", False)]
        old, new = self.simulators[name], Baseline.of([validation.to_json()]).simulators[name]
        if changed := changed_tolerances(old, new):
            hint = "restore the tolerances, or review the change and give --update-baseline any"
            raise InputError(f"the tolerances differ from those of the baseline: {changed}", hint=hint)
        return list(compare(name, old, new, old.ratchet))

    def changes(self, new: Baseline) -> Iterator[Finding]:
        """Yield the differences of `new` from this baseline; those that weaken the gate have failed."""
        for name, after in new.simulators.items():
            before = self.simulators.get(name)
            if few := [case for case, inputs in after.inputs.items() if 1 < inputs.predictions < LEAST_SEEDS]:
                text = f"{', '.join(few)}: fewer than {LEAST_SEEDS} runs of a stochastic simulator"
                yield Finding(name, "", "seeds", text, False)
            if before is None:
                yield Finding(name, "", "simulator", "new in the baseline", False)
                continue
            if changed := changed_tolerances(before, after):
                yield Finding(name, "", "tolerances", f"the tolerances changed: {changed}", True)
            if before.verdict != after.verdict:
                yield Finding(name, "", "verdict", f"{before.verdict} became {after.verdict}", False)
            yield from compare(name, before, after, GROWTH)
            yield from _improvements(name, before, after)


def _improvements(name: str, before: SimulatorBaseline, after: SimulatorBaseline) -> Iterator[Finding]:
    """Yield the metrics whose error is smaller than before."""
    for metric, now in after.metrics.items():
        was = before.metrics.get(metric)
        if was is not None and was.z is not None and now.z is not None and abs(now.z) < abs(was.z) - GROWTH:
            text = f"{title(metric)}: the error fell from {was.z:+.2f} to {now.z:+.2f} margins"
            yield Finding(name, metric, title(metric), text, False)
