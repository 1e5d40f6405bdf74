"""Study files: YAML files that define a study.

    workloads: {mine: {file: mine.parquet}}
    malleable: {shares: [0, 0.5, 1]}
    policies: [easy, pref]
    seeds: 10

docs/reference/study.md describes every key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.validation.experiments.experiment import KEYS, Point, Study
from tracebed.validation.experiments.parts import MOST_POINTS, Where, as_list
from tracebed.validation.metrics import all_metrics
from tracebed.yaml_file import YamlFile

SHIPPED = files("tracebed.validation.experiments") / "shipped"
HINT = "`tracebed sweep STUDY --show` prints a shipped study as an example"


@dataclass(frozen=True)
class StudyFile:
    """A study with its name and its file."""

    name: str
    study: Study
    source: YamlFile

    @property
    def folder(self) -> Path:
        """Base folder of relative paths in the file."""
        return Path(self.source.where).parent

    def selected(self, only: Mapping[str, list[str]]) -> list[Point]:
        """Return the points that match `only`: key -> accepted values as text.

        Raises:
            InputError: a key is unknown, no point has a value, a policy is not installed, or a parameter of a policy is
                unknown.
        """
        points = self.study.points()
        for key, wanted in only.items():
            _known_key(key, self.source.error)
            there = {_text(asdict(point)[key]) for point in points}
            for value in wanted:
                if value not in there:
                    have = ", ".join(sorted(there))
                    raise InputError(f"no point with {key}={value}", where=self.source.where, hint=f"use one of {have}")
            points = [point for point in points if _text(asdict(point)[key]) in wanted]
        if not points:
            raise InputError("no points of the grid remain", where=self.source.where, hint="exclude fewer points")
        self._check_policies({point.policy for point in points})
        return points

    def _check_policies(self, labels: set[str]) -> None:
        for index, policy in enumerate(self.study.policies):
            if policy.name in labels:
                try:
                    registry.resolve(policy.policy, policy.parameters, speed=self.study.speed)
                except InputError as error:
                    hint = error.hint or HINT
                    raise InputError(
                        error.what, where=self.source.error("", "policies", index).where, hint=hint
                    ) from error


def names() -> list[str]:
    """Return the names of the shipped studies."""
    return sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml"))


def load_study(name: str) -> StudyFile:
    """Read a study: the name of a shipped study, or the path of a YAML file.

    Raises:
        InputError: the study does not exist, the file is not YAML, or a key or value is invalid.
    """
    if name in names():
        with as_file(SHIPPED / f"{name}.yaml") as path:
            return _read(path)
    return _read(Path(name))


def parse_study(name: str, text: str, where: str) -> StudyFile:
    """Return the study of a YAML text.

    Args:
        name: name of the study.
        text: content of a study file.
        where: path of a file, for messages; relative paths begin at its folder.

    Raises:
        InputError: the text is not YAML, or a key or value is invalid.
    """
    return _checked(name, YamlFile.parse(text, where, hint=HINT))


def _read(path: Path) -> StudyFile:
    unreadable = f"use one of {', '.join(names())}, or the path of a YAML file"
    return _checked(path.stem, YamlFile.read(path, "study", hint=HINT, unreadable=unreadable))


def _checked(name: str, source: YamlFile) -> StudyFile:
    file = StudyFile(name, source.checked(Study), source)
    _check_references(file)
    return file


def _check_references(file: StudyFile) -> None:
    """Raise InputError if the file refers to a key, label, window or metric that does not exist."""
    study, error = file.study, file.source.error
    labels = [policy.name for policy in study.policies]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise error(f"two policies have the name {label!r}; add a `label`", "policies", index)
    known = study.axes
    if (size := math.prod(map(len, known.values()))) > MOST_POINTS:
        raise error(f"the grid has {size:,} points, more than {MOST_POINTS:,}; shorten an axis")

    def check(where: Where | None, *loc: int | str) -> None:
        for key, wanted in (where or {}).items():
            _known_key(key, error, *loc)
            for value in as_list(wanted):
                if value not in known[key]:
                    has = ", ".join(map(str, known[key]))
                    raise error(f"no point has {key} {value!r}; use one of {has}", *loc, key)

    for index, where in enumerate(study.exclude):
        check(where, "exclude", index)
    for index, published in enumerate(study.published):
        if published.figure not in all_metrics():
            known_figures = ", ".join(all_metrics())
            what = f"unknown figure {published.figure!r}; use one of {known_figures}"
            raise error(what, "published", index, "figure")
        check(published.at, "published", index, "at")
        check(published.relative_to, "published", index, "relative_to")
    for name, plot in study.plots.items():
        if plot.window is not None and plot.window not in study.windows:
            what = f"unknown window {plot.window!r}; use one of {', '.join(study.windows)}"
            raise error(what, "plots", name, "window")
        check(plot.at, "plots", name, "at")
        check(plot.relative_to, "plots", name, "relative_to")
    if not study.points():
        raise error("`exclude` removes all points of the grid", "exclude")


def _known_key(key: str, error: Any, *loc: int | str) -> None:
    if key not in KEYS:
        raise error(f"unknown key {key!r}; use one of {', '.join(KEYS)}", *loc)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')
