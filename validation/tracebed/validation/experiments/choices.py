"""The free choices of a study: one point of its grid, and the same point with one choice changed.

A choice has a name and values. The name is, in this order,

- `window`: a window of the metrics, by name;
- a key of the points (`policy`, `share`, `interval_s`, ...), except the accidents `seed` and `shake`;
- a key of the study file (`over_limit`, `tau`, `malleable.preferred`);
- a key of the workload (`limits`, `nodes`, `scale.start`, `log.settings.STEP.PARAMETER`, `options.OPTION`);
- a threshold of malleable jobs (`preferred`, `most`, `least`);
- a parameter of the policy (`calls`).

A value that is a mapping changes several choices at once, and its name is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.validation.experiments.experiment import KEYS, Point, Study
from tracebed.validation.experiments.file import StudyFile
from tracebed.validation.experiments.parts import NO_PROCESSES, Malleable, WorkloadSpec, as_list, named
from tracebed.validation.experiments.views.published import REPLICATE

NOT_OF_A_POINT = ("about", "exclude", "plots", "published", "sensitivity")
"""Keys of a study that are about its whole grid."""


@dataclass(frozen=True)
class Choice:
    """Another value of a free choice."""

    name: str
    value: Any
    base: Any
    """The value at the base; None if the value is a mapping, or if the study has none."""

    @property
    def changes(self) -> dict[str, Any]:
        """The keys that change, with their values."""
        return dict(self.value) if isinstance(self.value, dict) else {self.name: self.value}

    @property
    def label(self) -> str:
        """The choice as text: `calls: tick`."""
        return f"{self.name}: {spelled(self.value)}"


@dataclass(frozen=True)
class Setting:
    """A study whose grid has one point."""

    file: StudyFile
    point: Point
    window: str

    def value(self, name: str) -> Any:
        """Return the value of a choice, or None if the study has none."""
        study, point = self.file.study, self.point
        if name == "window":
            return self.window
        if name in KEYS:
            return asdict(point)[name]
        first, *rest = name.split(".")
        whole = study.model_dump(mode="json")
        if first in Study.model_fields:
            found = whole.get(first)
        elif first in WorkloadSpec.model_fields:
            found = whole["workloads"][point.workload].get(first)
        elif first in Malleable.model_fields:
            found = (whole["malleable"] or {}).get(first)
        else:
            spec = study.policy(point)
            found = registry.parameters(registry.load(spec.policy, spec.parameters)).get(name)
        for part in rest:
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def replicates(self, runs: int) -> list[Point]:
        """Return `runs` points with other accidents: the changes of the workload 1, 2, ..., and the seeds in turn."""
        seeds = self.file.study.seeds
        return [replace(self.point, seed=seeds[run % len(seeds)], shake=run + 1) for run in range(runs)]


def spelled(value: Any) -> str:
    """Return a value as text: `kill`, `interval_s 0, malleability_interval_s 10`, and `-` for a missing one."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {spelled(each)}" for key, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def setting(file: StudyFile, changes: Mapping[str, Any]) -> Setting:
    """Return the first point of a study with some choices changed. The windows of the study remain.

    Raises:
        InputError: a choice is unknown, or a value is invalid.
    """
    first = {key: values[0] for key, values in file.study.axes.items() if key not in REPLICATE}
    if first["share"] is None:
        del first["share"]
    wanted = first | {"window": next(iter(file.study.windows))} | dict(changes)
    raw = {key: deepcopy(value) for key, value in file.source.raw.items() if key not in NOT_OF_A_POINT}
    ordered = sorted(wanted, key=lambda key: key not in ("workload", "policy"))  # other names may be theirs
    try:
        for name in ordered:
            _set(file.study, raw, name, wanted[name])
        source = replace(file.source, raw=raw)
        narrow = StudyFile(file.name, source.checked(Study), source)
        (point, *_) = narrow.selected({})
    except InputError as error:
        about = f"{spelled(dict(changes))}: " if changes else ""
        raise InputError(f"{about}{error.what}", where=file.source.where, hint=error.hint) from error
    return Setting(narrow, point, wanted["window"])


def others(
    file: StudyFile, base: Mapping[str, Any], wanted: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[Choice, Setting]]:
    """Yield each value of the choices that is not that of the base, with its setting.

    Args:
        file: the study.
        base: choice -> value at the base.
        wanted: choice -> values.

    Raises:
        InputError: a choice is unknown, or a value is invalid.
    """
    unchanged = setting(file, base)
    for name, values in wanted.items():
        for value in values:
            choice = Choice(name, value, None if isinstance(value, dict) else unchanged.value(name))
            changed = setting(file, {**base, **choice.changes})
            if any(changed.value(key) != unchanged.value(key) for key in choice.changes):
                yield choice, changed


def _set(study: Study, raw: dict[str, Any], name: str, value: Any) -> None:
    """Give a choice a value in the raw content of a study. Raises InputError if there is no such choice."""
    if name == "window":
        _one_of(name, value, study.windows)
    elif name in REPLICATE:
        raise InputError(f"{name} is an accident, not a choice", hint="leave it out; --shake has the number of runs")
    elif name == "workload":
        _one_of(name, value, study.workloads)
        raw["workloads"] = {value: raw["workloads"][value]}
    elif name == "policy":
        own = {spec.name: given for spec, given in zip(study.policies, raw["policies"], strict=True)}
        if value not in own:
            _one_of(name, value, [*own, *registry.names()])
        raw["policies"] = [{"label": value} | named(own.get(value, value))]  # the name stays with other parameters
    elif name == "share":
        raw["malleable"] = {**(raw.get("malleable") or {}), "shares": value}
    elif name == "processes":
        given = as_list(raw.get(name, NO_PROCESSES))
        own = {spec.name: each for spec, each in zip(study.processes, given, strict=False)}
        raw[name] = own.get(value, value)
    elif name in KEYS:
        raw[name] = value
    else:
        _set_key(raw, name, value)


def _set_key(raw: dict[str, Any], name: str, value: Any) -> None:
    """Set a key of the study, of its only workload, of its malleable jobs, or a parameter of its only policy."""
    (workload,), (policy,) = raw["workloads"].values(), raw["policies"]
    parts = name.split(".")
    first = parts[0]
    if first in Study.model_fields:
        place = raw
    elif first in WorkloadSpec.model_fields:
        place = workload
        if first == "log":  # other jobs than those of the study
            workload["log"] = {key: each for key, each in workload["log"].items() if key not in ("jobs", "fingerprint")}
    elif first in Malleable.model_fields:
        place = raw.setdefault("malleable", {})
    else:
        place, parts = policy.setdefault("parameters", {}), [name]
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise InputError(f"{part} has no keys", hint="write the key as in the study file, with dots")
    place[parts[-1]] = value


def _one_of(name: str, value: Any, known: Iterable[Any]) -> None:
    if value not in known:
        raise InputError(f"unknown {name} {value!r}", hint=f"use one of {', '.join(map(str, known))}")
