"""Provenance of a workload: system, clock, source files, and processing steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tracebed.ground.bounds import MAX_EXACT, MAX_SIZE
from tracebed.ground.errors import InputError, reason_of
from tracebed.ground.files import sha256_of
from tracebed.ground.input_files import is_deeper
from tracebed.ground.topology import Grid
from tracebed.ground.version import version

MAX_DEPTH = 20
"""Deepest accepted nesting of a provenance record. tracebed writes fewer than ten levels."""


@dataclass(frozen=True)
class System:
    """The system of a workload: number of nodes and cores per node, `None` if unknown, and the grid of its network."""

    nodes: int | None = None
    cores_per_node: int | None = None
    name: str = ""
    grid: str = ""
    """The grid of the nodes, as `Grid.parse` reads it; empty if unknown."""

    def __str__(self) -> str:
        nodes, cores = ("unknown" if size is None else f"{size:,}" for size in (self.nodes, self.cores_per_node))
        return f"{nodes} nodes x {cores} cores" + (f" ({self.name})" if self.name else "")

    def __post_init__(self) -> None:
        """Raise InputError if a size is below 1 or above `MAX_SIZE`, or the grid has another number of nodes."""
        for size in (self.nodes, self.cores_per_node):
            if size is not None and not 1 <= size <= MAX_SIZE:
                hint = f"use 1 to {MAX_SIZE:,}, or null if unknown"
                raise InputError(f"invalid system size {size}", hint=hint)
        if self.grid:
            Grid.parse(self.grid, self.nodes)


@dataclass(frozen=True)
class Source:
    """A source file of a workload. `name` excludes the folder, so that a copy elsewhere is the same source."""

    name: str
    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: Path) -> Source:
        """Return name, hash and size of the file at `path`, as stored (compressed files are not unpacked)."""
        return cls(path.name, sha256_of(path), path.stat().st_size)


@dataclass(frozen=True)
class Step:
    """One processing step of a workload: its name, parameters and counts."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    seed: int | None = None
    version: str = field(default_factory=lambda: version())


@dataclass(frozen=True)
class Provenance:
    """Provenance of a workload: system, clock, source files, and the steps in order."""

    system: System = field(default_factory=System)
    time_zone: str | None = None
    """Time zone of the log's clock, as named in the zoneinfo database."""
    unix_start: float | None = None
    """Unix time of time 0, s since 1970-01-01 UTC."""
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    header: dict[str, list[str]] = field(default_factory=dict)
    """Header of the source file: label -> values, in order (SWF header comments)."""

    def to_json(self) -> str:
        """Return the record as one line of JSON with sorted keys."""
        record = asdict(self)
        if not self.system.grid:
            del record["system"]["grid"]  # earlier versions read the record
        return json.dumps(record, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str | None = None) -> Provenance:
        """Parse the output of `to_json`. Raise InputError, naming `where`, if `text` is not such a record."""
        try:
            raw = json.loads(text)
            if is_deeper(raw, MAX_DEPTH):  # copying and writing a record are recursive
                raise RecursionError
            record = cls(
                system=System(**raw["system"]),
                time_zone=raw["time_zone"],
                unix_start=raw["unix_start"],
                sources=tuple(Source(**source) for source in raw["sources"]),
                steps=tuple(Step(**step) for step in raw["steps"]),
                header=raw["header"],
            )
            for name, kind in get_type_hints(Provenance).items():  # a record may be edited by hand
                if not fits(getattr(record, name), kind):
                    raise TypeError(f"{name} has the wrong type")
            return record
        except (ValueError, TypeError, KeyError, InputError, RecursionError) as error:
            what = f"not a provenance record of tracebed: {reason_of(error)}"
            raise InputError(what, where=where, hint="remove it: the provenance is then unknown") from error


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value from JSON and its elements have the type `kind`. Booleans do not count as numbers."""
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
    """Return one readable line per step: its name, parameters and counts."""
    return [
        f"{step['name']}({', '.join(f'{k}={_brief(v)}' for k, v in step['parameters'].items())})"
        + (f": {', '.join(f'{k} {v:,}' for k, v in step['counts'].items())}" if step["counts"] else "")
        for step in provenance["steps"]
    ]
