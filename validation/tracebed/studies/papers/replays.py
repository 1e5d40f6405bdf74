"""The replays of an experiment: on which nodes, and kept from an earlier start of the experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.programs import shortest_replay
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.checking.survey import load_with_facts
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.studies.papers.base import Replay, Settings


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
