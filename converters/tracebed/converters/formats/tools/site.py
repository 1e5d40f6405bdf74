"""The log of one site: a table of columns, and a function for what is not a column.

A site declares its columns by the names of the workload's columns, which are then taken as they are: times as instants
in the time zone of the site, numbers, labels and texts. Any other name is a column that only the logic of the site
reads. Beside the kinds of `columns`, a site has columns of these kinds:

    positive     numbers; those that are not positive are unknown, as in all columns `extra_...`
    state        labels: states of Slurm, as the status of a workload
    exit         numbers: exit codes, as the status of a workload
    cores        numbers: the cores of a job on all its nodes, as cores per node
    whole nodes  no column of a file: jobs have all cores of their nodes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import (
    WHICH_HOUR,
    Columns,
    ColumnSpec,
    in_order,
    one_machine,
    read_columns,
    relabel,
)
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.gres import UNEVEN, gpus_on_nodes
from tracebed.converters.formats.tools.states import slurm_states
from tracebed.converters.log import Log, make_log, place_of
from tracebed.converters.workload import SCHEMA, BoolArray, System
from tracebed.ground.states import JobState

TIMES = ("submit_time", "logged_start", "logged_end")
READ_AS = {**dict.fromkeys(("positive", "exit", "cores"), "number"), "state": "label"}
"""Kind of a site's column -> kind of the column that is read."""


@dataclass(frozen=True)
class Derived:
    """What the logic of a site adds to its columns."""

    columns: Mapping[str, Any]
    """Columns as in `make_log`; they replace the columns of the same name."""
    defects: Mapping[str, BoolArray | int] = field(default_factory=dict)
    """Defects as in `make_log`."""


@dataclass(frozen=True)
class Site:
    """The log of a site. The column `machine`, if there is one, names the machine of a record."""

    name: str
    summary: str
    marks: tuple[frozenset[str], ...]
    """Sets of columns in lower case; a file with all columns of one set is a log of the site."""
    zone: str
    """Time zone of times without one."""
    columns: Mapping[str, ColumnSpec]
    system: System
    """The machine; of a site with several, the start of the name of a machine that is not in `machines`."""
    derive: Callable[[Columns, System, str], Derived] | None = None
    """The logic of the site: columns read, machine whose records are read, time zone -> what is added."""
    machines: Mapping[str, System] = field(default_factory=dict)
    """Name in lower case -> machine."""
    skip: tuple[str, ...] = ()
    """Columns that are ignored; too large to be useful as `extra_...`."""

    @property
    def format(self) -> Format:
        """The format of the log."""
        read_log = self.read_machine if "machine" in self.columns else self.read
        return Format(self.name, self.summary, self.recognizes, read_log=read_log)

    def recognizes(self, file: Input) -> bool:
        """Return whether the file has the columns of this log."""
        return any(marks <= set(file.columns) for marks in self.marks)

    def read(
        self,
        files: Sequence[Input],
        *,
        keep_extra: bool = False,
        keep_names: bool = False,
        time_zone: str | None = None,
    ) -> Log:
        """Read one or several files.

        Args:
            files: CSV or Parquet files.
            keep_extra: keep every other column as `extra_...`.
            keep_names: keep the names of users and groups.
            time_zone: the time zone of times without one; by default the time zone of the site.

        Raises:
            InputError: a column is missing or a value is invalid.
        """
        options = {"time_zone": time_zone or self.zone, "keep_extra": keep_extra, "keep_names": keep_names}
        return self._read(files, options, None)

    def read_machine(
        self,
        files: Sequence[Input],
        *,
        keep_extra: bool = False,
        keep_names: bool = False,
        time_zone: str | None = None,
        machine: str | None = None,
    ) -> Log:
        """Read like `read`; `machine` is the machine to read, if the files have several.

        Raises:
            InputError: as `read`, or the files have several machines and `machine` is None.
        """
        options = {"time_zone": time_zone or self.zone, "keep_extra": keep_extra, "keep_names": keep_names}
        return self._read(files, {**options, "machine": machine}, machine)

    def _read(self, files: Sequence[Input], options: dict[str, Any], machine: str | None) -> Log:
        zone: str = options["time_zone"]
        wanted = {name: spec._replace(kind=READ_AS.get(spec.kind, spec.kind)) for name, spec in self.columns.items()}
        c = read_columns(files, wanted, extras=options["keep_extra"], skip=self.skip)
        system, only = self.system, None
        if "machine" in self.columns:
            name, only = one_machine(c.labels("machine"), machine, place_of(files))
            unknown = System(name=f"{self.system.name} {name}".strip() if name else "")
            system = self.machines.get(name.lower(), unknown)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            derived = self.derive(c, system, zone) if self.derive else Derived({})
            known = {name for name in self.columns if name in SCHEMA or name.startswith("extra_")}
            made = [name for name in self.columns if name in known and (name in c or name == "cores_per_node")]
            taken = {name: self._column(c, name, system, zone) for name in made}
        defects, gpus = dict(derived.defects), {**taken, **derived.columns}.get("extra_gpus")
        if gpus is not None and "gres" not in derived.columns:
            nodes = np.asarray({**taken, **derived.columns}["nodes"], dtype=np.float64)
            taken["gres"], defects[UNEVEN] = gpus_on_nodes(gpus, nodes)
        if set(TIMES) <= set(c.values):
            times, defects[WHICH_HOUR] = in_order(c, TIMES, zone, c.numbers("run_time" if "run_time" in c else "run"))
            taken |= times
        return make_log(
            files,
            self.name,
            {**taken, **derived.columns, **c.extras},
            system=system,
            time_zone=zone,
            parameters=options,
            defects=defects,
            only=only,
            place=c.place,
            names=("user", "group"),
            unread=c.unread,
        )

    def _column(self, c: Columns, name: str, system: System, zone: str) -> Any:
        """Return a column as its kind says."""
        match self.columns[name].kind:
            case "time":
                return c.instants(name, zone)
            case "state":
                return slurm_states(c[name])
            case "exit":
                codes = np.where(np.isnan(c[name]), -1, c[name] != 0).astype(np.int64)
                return relabel(codes, [JobState.COMPLETED, JobState.FAILED])
            case "cores":
                nodes = c.numbers("nodes")
                return np.where(nodes > 0, np.ceil(c.numbers(name) / nodes).clip(1.0, None), np.nan)
            case "whole nodes":
                return np.full(len(c), system.cores_per_node or 1)
            case kind:
                positive = kind == "positive" or (kind == "number" and name.startswith("extra_"))
                return first_positive(c[name]) if positive else c[name]
