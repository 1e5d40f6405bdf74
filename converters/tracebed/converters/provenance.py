"""Where a workload comes from: the machine, the clock, the source files, and every step since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tracebed.converters.limits import MAX_EXACT, MAX_SIZE
from tracebed.errors import InputError

MAX_DEPTH = 20
"""Deepest accepted nesting of a provenance record; tracebed writes less than ten levels."""


@dataclass(frozen=True)
class System:
    """The machine a workload was made for: nodes, and cores on each; `None`: not known."""

    nodes: int | None = None
    cores_per_node: int | None = None
    name: str = ""

    def __str__(self) -> str:
        nodes, cores = ("unknown" if size is None else f"{size:,}" for size in (self.nodes, self.cores_per_node))
        return f"{nodes} nodes x {cores} cores" + (f" ({self.name})" if self.name else "")

    def __post_init__(self) -> None:
        """Raise InputError if a size is below 1, or beyond `MAX_SIZE`."""
        for size in (self.nodes, self.cores_per_node):
            if size is not None and not 1 <= size <= MAX_SIZE:
                hint = f"sizes are from 1 to {MAX_SIZE:,}, or null where not known"
                raise InputError(f"a system of size {size}", hint=hint)


@dataclass(frozen=True)
class Source:
    """A file that a workload was read from; `name` without its folder: a copy elsewhere is the same."""

    name: str
    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: Path) -> Source:
        """Describe the file at `path` as it stands on the disk (compressed, if it is)."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.name, digest, path.stat().st_size)


@dataclass(frozen=True)
class Step:
    """One thing that was done to a workload: which, how, and what it counted."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    seed: int | None = None
    version: str = field(default_factory=lambda: version("tracebed"))


@dataclass(frozen=True)
class Provenance:
    """Where a workload comes from: system, clock, source files, and every step since, in order."""

    system: System = field(default_factory=System)
    time_zone: str | None = None
    """Name in the zoneinfo database."""
    unix_start: float | None = None
    """The instant of time 0, s since 1970-01-01 UTC."""
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    header: dict[str, list[str]] = field(default_factory=dict)
    """What the source file says of itself: label -> values, in order (SWF header comments)."""

    def to_json(self) -> str:
        """One line of JSON, keys in a fixed order."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str | None = None) -> Provenance:
        """Inverse of `to_json`. Raises InputError, naming `where`, if `text` is not a record of tracebed."""
        try:
            raw = json.loads(text)
            _check_depth(raw)
            record = cls(
                system=System(**raw["system"]),
                time_zone=raw["time_zone"],
                unix_start=raw["unix_start"],
                sources=tuple(Source(**source) for source in raw["sources"]),
                steps=tuple(Step(**step) for step in raw["steps"]),
                header=raw["header"],
            )
            record._check_types()
            return record
        except (ValueError, TypeError, KeyError, InputError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            what = f"not a provenance record of tracebed: {reason}"
            raise InputError(what, where=where, hint="remove it, and what it tells is not known") from error

    def _check_types(self) -> None:
        """Raise TypeError if a value is not of the type of its field: the record was edited."""
        for name, kind in get_type_hints(Provenance).items():
            if not fits(getattr(self, name), kind):
                raise TypeError(f"{name} is not what it must be")


def _check_depth(raw: Any) -> None:
    """Raise RecursionError if JSON is nested deeper than `MAX_DEPTH`: the record is copied and written recursively."""
    level: list[Any] = [[raw]]
    depth = 0
    while level:
        parts = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [part for part in parts if isinstance(part, dict | list)]
        depth += 1
        if depth > MAX_DEPTH:
            raise RecursionError


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a value from JSON is of a kind, down to its parts; true and false are no numbers."""
    inner = get_args(kind)
    if is_dataclass(kind):
        return all(fits(getattr(value, name), part) for name, part in get_type_hints(kind).items())
    if isinstance(kind, UnionType):
        return any(fits(value, part) for part in inner)
    if isinstance(value, dict) and get_origin(kind) is dict:
        return all(fits(element, inner[1]) for element in value.values())
    if isinstance(value, list | tuple) and get_origin(kind) in (list, tuple):
        return all(fits(element, inner[0]) for element in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_EXACT
    if kind is int and isinstance(value, int) and abs(value) > 2**63:
        return False
    return kind is Any or (isinstance(kind, type) and isinstance(value, kind) and not isinstance(value, bool))


def _brief(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def steps_of(provenance: Mapping[str, Any]) -> list[str]:
    """Return one line a step for people: its name, parameters and counts."""
    return [
        f"{step['name']}({', '.join(f'{k}={_brief(v)}' for k, v in step['parameters'].items())})"
        + (f": {', '.join(f'{k} {v:,}' for k, v in step['counts'].items())}" if step["counts"] else "")
        for step in provenance["steps"]
    ]
