"""Tolerances: the margins of the metrics and the constants of the decision, with a hash.

The defaults are the margins of the installed metrics. `tolerances.yaml`, beside this module, is generated from the
metrics of tracebed and lists these defaults as a file to start from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tracebed.ground.errors import InputError
from tracebed.ground.registry import unknown
from tracebed.ground.yaml_file import YamlFile
from tracebed.validation.metrics import Margin, Metric, all_metrics
from tracebed.validation.moving_average import WINDOW_S

SHIPPED = Path(__file__).with_name("tolerances.yaml")  # the default tolerances as a file
HINT = "write 10%, 30s or 10%,30s; and gate, advisory or off"
DEFAULT = "default"


@dataclass(frozen=True)
class Tolerances:
    """Margins and constants of the decision."""

    margins: Mapping[str, Margin]
    """Metric -> margin. Metrics without a margin are not part of a validation."""
    alpha: float = 0.025
    """Level of each one-sided test; intervals have the coverage 1 - 2 alpha."""
    kappa: float = 2.0
    """Guard: largest accepted error of one case, in margins."""
    repeats_few: int = 5
    """Healthy repetitions that each case needs in a validation of fewer than `MANY` cases."""
    repeats_many: int = 3
    """Healthy repetitions that each case needs in a validation of at least `MANY` cases."""
    unmatched: float = 0.01
    """Largest accepted share of jobs without a counterpart."""
    ratchet: float = 0.25
    """Largest accepted growth of an error since the baseline, in margins."""
    window_s: float = WINDOW_S
    """Longest window of the moving average of the wait, s, which is advisory (`moving_average`)."""
    source: str = DEFAULT
    """`default`, the file, or either followed by the changed margins."""

    @classmethod
    def default(cls) -> Tolerances:
        """Return the default tolerances: the margins of the installed metrics."""
        return cls({name: metric.margin for name, metric in all_metrics().items() if metric.margin is not None})

    @classmethod
    def load(cls, path: Path | str) -> Tolerances:
        """Read a tolerances file. Keys and metrics that the file omits keep their defaults.

        Raises:
            InputError: the file cannot be read, or a value is invalid. The error names file and line.
        """
        file = YamlFile.read(
            Path(path),
            "tolerances",
            hint="keys: alpha, kappa, repeats, unmatched, ratchet, window_s, margins",
            unreadable="check the path",
        )
        spec = file.checked(_TolerancesFile)
        margins = dict(cls.default().margins)
        for name, text in spec.margins.items():
            try:
                metric = metric_named(name)
                margins = _with(margins, metric, parse_margin(text, metric, margins.get(metric.name)))
            except InputError as error:
                raise file.error(error.what, "margins", name, hint=error.hint) from None
        constants = spec.model_dump(exclude={"margins", "repeats"}, exclude_unset=True)
        few, many = spec.repeats.few, spec.repeats.many
        return cls(margins, **constants, repeats_few=few, repeats_many=many, source=str(path))

    def replaced(self, margins: Mapping[str, str]) -> Tolerances:
        """Return these tolerances with other margins: `{"wait": "15%", "makespan_s": "3%,60s"}`.

        Raises:
            InputError: a metric is unknown, or a margin is invalid.
        """
        if not margins:
            return self
        changed = dict(self.margins)
        for name, text in margins.items():
            metric = metric_named(name)
            changed = _with(changed, metric, parse_margin(text, metric, changed.get(metric.name)))
        texts = ", ".join(f"{name}={text}" for name, text in margins.items())
        return replace(self, margins=changed, source=f"{self.source}, {texts}")

    def scaled(self, factor: float) -> Tolerances:
        """Return these tolerances with all margins multiplied by `factor`."""
        margins = {name: margin.scaled(factor) for name, margin in self.margins.items()}
        return replace(self, margins=margins, source=f"{self.source}, times {factor:g}")

    @property
    def sha256(self) -> str:
        """Hash of the gated margins and the constants, on which the verdict depends."""
        content = self.to_json()
        del content["source"], content["window_s"]
        content["margins"] = {name: margin for name, margin in content["margins"].items() if margin["gate"]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the tolerances as JSON values, without the hash."""
        return asdict(self) | {"margins": {name: asdict(margin) for name, margin in self.margins.items()}}

    def repeats(self, cases: int) -> int:
        """Return the number of healthy repetitions that each case needs in a validation of `cases` cases."""
        return self.repeats_many if cases >= MANY else self.repeats_few


MANY = 5  # number of cases from which `Tolerances.repeats_many` repetitions are enough


def metric_named(name: str) -> Metric:
    """Return the metric with this name or short name. Raises InputError if it is unknown."""
    known = all_metrics()
    short = {metric.short: metric for metric in known.values() if metric.short}
    found = known.get(name) or short.get(name)
    if found is None:
        raise unknown("metric", name, [*short, *known])
    return found


def parse_margin(text: str, metric: Metric, current: Margin | None = None) -> Margin | None:
    """Return the margin in `text`, such as `10%`, `30s`, `10%, 30 s` or `3%, advisory`; None for `off`.

    A share is in percent of the real value, an amount in the unit of the metric. Without a word about the gate, that of
    `current` holds.
    """
    parts = [part.strip() for part in str(text).split(",")]
    if parts == ["off"]:
        return None
    fields: dict[str, float | bool] = {}
    for part in parts:
        key, value = _part(part, metric)
        if key in fields:
            raise InputError(f"{text!r} is not a margin: {part!r} is given twice", hint=HINT)
        fields[key] = value
    if not fields.keys() - {"gate"}:
        if current is None:
            raise InputError(f"{text!r} is not a margin of {metric.name}: the amount is missing", hint=HINT)
        return replace(current, gate=bool(fields["gate"]))
    gate = fields.get("gate", current is not None and current.gate)
    return Margin(float(fields.get("relative", 0)), float(fields.get("absolute", 0)), gate=bool(gate))


def _part(text: str, metric: Metric) -> tuple[str, float | bool]:
    """Return the field of `Margin` that a part of the text sets, and its value."""
    if text in ("gate", "advisory"):
        return "gate", text == "gate"
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(\S*)", text)
    if match and match[2] == "%":
        return "relative", float(match[1]) / 100
    if match and match[2] in ("", metric.unit):
        return "absolute", float(match[1])
    unit = f"an amount in {metric.unit}" if metric.unit else "an amount without a unit"
    raise InputError(f"{text!r} is not a margin of {metric.name}: neither a percentage nor {unit}", hint=HINT)


def _with(margins: dict[str, Margin], metric: Metric, margin: Margin | None) -> dict[str, Margin]:
    """Return the margins with that of `metric` replaced, or removed if None."""
    others = {name: kept for name, kept in margins.items() if name != metric.name or margin is not None}
    return others if margin is None else others | {metric.name: margin}


class _Repeats(BaseModel):
    model_config = ConfigDict(extra="forbid")
    few: Annotated[int, Field(ge=2, le=1000)] = Tolerances.repeats_few
    many: Annotated[int, Field(ge=2, le=1000)] = Tolerances.repeats_many


class _TolerancesFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = Tolerances.alpha
    kappa: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Tolerances.kappa
    repeats: _Repeats = _Repeats()
    unmatched: Annotated[float, Field(ge=0, lt=1)] = Tolerances.unmatched
    ratchet: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Tolerances.ratchet
    window_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Tolerances.window_s
    margins: dict[str, str] = {}
