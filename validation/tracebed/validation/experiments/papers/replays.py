"""The replays of an experiment: on which nodes, and kept from an earlier start of the experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.checking.survey import load_with_facts
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.validation.experiments.papers.base import Settings


def replayed(
    settings: Settings,
    folder: str,
    workload: Workload,
    inventory: Inventory,
    policy: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str,
    speed: float,
    balance: str = "static",
) -> Run:
    """Return the run in `folder` of the experiment. Replay the workload unless the run is complete already.

    Args:
        folder: name of the folder of the run.
        workload: the submission list.
        inventory: the nodes.
        policy: name of the policy.
        parameters: parameters of the policy.
        name: name of the workload, for reports.
        speed: trace seconds per wall second.
    """
    path = settings.folder / "runs" / folder
    if path.exists() and not (run := Run.load(path)).info.stopped_by_signal:
        return run
    run = replay(
        workload,
        inventory,
        policy,
        path,
        name=name,
        options=Options(balance=balance),
        policy_parameters=parameters,
        speed=speed,
        replace_run=True,  # an interrupted attempt
    )
    if run.info.stopped_by_signal:
        raise KeyboardInterrupt
    return run


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
) -> Iterator[Run]:
    """Yield the run of each repetition, in the folder LABEL-REPETITION. The arguments are those of `replayed`."""
    for repetition in range(1, settings.repetitions + 1):
        settings.on_step(f"{label}: {repetition} of {settings.repetitions}")
        folder = f"{label}-{repetition}"
        yield replayed(settings, folder, workload, inventory, policy, parameters, name=name, speed=speed)


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
