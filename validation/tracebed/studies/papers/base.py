"""What an experiment by real runs is: settings in, replays and findings out. Replays that are done are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import Any

from tracebed.converters.workload import Workload
from tracebed.ground.display import markdown_table
from tracebed.ground.extension_errors import checked
from tracebed.ground.files import replacing
from tracebed.ground.registry import Registry
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.programs import shortest_replay
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.checking.survey import load_with_facts
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.studies.ledger.ledger import Measured
from tracebed.validation.experiments.workloads import named_logs


@dataclass(frozen=True)
class Settings:
    """What a user chooses for an experiment.

    Attributes:
        folder: folder for the runs and the findings.
        inventory: file or name of an inventory; None: the experiment chooses from the cores of this machine.
        repetitions: number of replays of each scenario.
        speed: trace seconds per wall second; None: the experiment chooses.
        logs: name of a log -> its path, for experiments that read logs.
        on_step: function that reports the steps to the user.
    """

    folder: Path
    inventory: str | None = None
    repetitions: int = 3
    speed: float | None = None
    logs: Mapping[str, Path] = field(default_factory=dict)
    on_step: Callable[[str], None] = field(default=lambda step: None)


@dataclass(frozen=True)
class Replay:
    """A replay of an experiment."""

    folder: str  # name of the folder of the run
    workload: Workload
    inventory: Inventory
    policy: str
    parameters: Mapping[str, Any] | None  # parameters of the policy
    name: str  # name of the workload, for reports
    speed: float  # trace seconds per wall second
    balance: str = "static"


@dataclass(frozen=True)
class FindingsTable:
    """A table of findings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Findings:
    """The findings of an experiment."""

    title: str
    tables: Sequence[FindingsTable]
    notes: Sequence[str] = ()  # what differs from the paper, and what the figures depend on
    measured: Measured | None = None  # the figures of each repetition, for the claims in the file of the paper
    pictures: Mapping[str, str] = field(default_factory=dict)  # caption -> file, relative to the folder

    def markdown(self) -> str:
        """Return the findings as a page in Markdown."""
        parts = [f"# {self.title}"]
        for table in self.tables:
            rows = ([str(value) for value in row] for row in table.rows)
            parts += [f"## {table.title}", markdown_table(table.columns, rows)]
        parts += [f"![{caption}]({file})" for caption, file in self.pictures.items()]
        parts += [f"- {note}" for note in self.notes]
        return "\n\n".join(parts) + "\n"

    def facts(self) -> dict[str, Any]:
        """Return the findings for JSON."""
        tables = [{"title": table.title, "columns": table.columns, "rows": table.rows} for table in self.tables]
        return {"title": self.title, "tables": tables, "notes": self.notes}

    def save(self, folder: Path) -> Path:
        """Write `findings.md`, and return its path."""
        path = folder / "findings.md"
        with replacing(path) as stream:
            stream.write(self.markdown().encode())
        return path


PaperFunction = Callable[[Settings], Findings]
"""An experiment: a function whose docstring begins with a line on what it repeats. A `Study` also lists its replays."""


class Study:
    """An experiment that lists its replays without running them."""

    def __init__(self, function: PaperFunction, replays: Callable[[Settings], Iterator[Replay]], speed: float) -> None:
        """Take the experiment, the list of its replays, and its speed by default."""
        self._function, self.replays, self.speed = function, replays, speed
        update_wrapper(self, function)

    def __call__(self, settings: Settings) -> Findings:
        """Run the experiment."""
        return self._function(settings)


def study(replays: Callable[[Settings], Iterator[Replay]], speed: float) -> Callable[[PaperFunction], Study]:
    """Return the decorator of an experiment whose replays are listed by `replays`."""
    return lambda function: Study(function, replays, speed)


def reads(*logs: str) -> Callable[[PaperFunction], PaperFunction]:
    """Return the decorator of an experiment that reads logs of these names."""

    def named(function: PaperFunction) -> PaperFunction:
        function.logs = logs  # type: ignore[attr-defined]
        return function

    return named


class Papers(Registry[PaperFunction]):
    """The installed experiments of papers."""

    def logs(self, name: str, texts: Sequence[str]) -> dict[str, Path]:
        """Return the paths given by `--log NAME=PATH`, by name. Raises InputError as `named_logs`."""
        return named_logs(name, getattr(self.load(name), "logs", ()), texts)

    def findings(self, name: str, settings: Settings) -> Findings:
        """Run an experiment. Raises InputError if it is not installed, or has no findings."""
        function = self.load(name)
        findings: Findings = checked(function(settings), Findings, f"experiment {name}", function)
        return findings


PAPERS = Papers("tracebed.experiments", "experiment", Callable)


def percent(before: float, after: float) -> str:
    """Return the relative change from `before` to `after`."""
    return f"{100 * (after / before - 1):+.1f} %"


def replayed(settings: Settings, wanted: Replay) -> Run:
    """Return the run of a replay of the experiment. Replay the workload unless the run is complete already."""
    if is_done(settings, wanted):
        return Run.load(_folder(settings, wanted))
    settings.on_step(f"replay {wanted.folder}")
    run = replay(
        wanted.workload,
        wanted.inventory,
        wanted.policy,
        _folder(settings, wanted),
        name=wanted.name,
        options=Options(balance=wanted.balance),
        policy_parameters=wanted.parameters,
        speed=wanted.speed,
        replace_run=True,  # an interrupted attempt
    )
    if run.info.stopped_by_signal:
        raise KeyboardInterrupt
    return run


def is_done(settings: Settings, wanted: Replay) -> bool:
    """Return whether the run of a replay is complete."""
    path = _folder(settings, wanted)
    return path.exists() and not Run.load(path).info.stopped_by_signal


def shortest_s(wanted: Replay) -> float:
    """Return a lower bound of the wall time of a replay, s."""
    return shortest_replay(wanted.workload, wanted.inventory, wanted.speed)


def _folder(settings: Settings, wanted: Replay) -> Path:
    return settings.folder / "runs" / wanted.folder


def repeated(
    settings: Settings,
    label: str,
    workload: Workload,
    inventory: Inventory,
    policy: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str,
    speed: float,
) -> Iterator[Replay]:
    """Yield the replay of each repetition, in the folder LABEL-REPETITION. Other arguments are those of `Replay`."""
    for repetition in range(1, settings.repetitions + 1):
        yield Replay(f"{label}-{repetition}", workload, inventory, policy, parameters, name, speed)


def inventory_of(settings: Settings, otherwise: Callable[[], Inventory]) -> Inventory:
    """Return the inventory of the settings, or that of the experiment."""
    if settings.inventory is None:
        return otherwise()
    found = load_with_facts(settings.inventory, on_step=settings.on_step)
    found.check_real()
    return found


def emulated(nodes: int, cores: int, sockets: int, grain_s: float) -> Inventory:
    """Return emulated nodes with the given cores and sockets each."""
    made = tuple(Node(f"n{number:02}", cores, sockets, None, True) for number in range(1, nodes + 1))
    return Inventory(f"{nodes} x {cores} emulated", "agents", made, grain_s=grain_s)
