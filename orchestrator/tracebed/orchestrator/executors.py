"""Executors: what turns a workload on a machine under a setup into a run, from entry points of `tracebed.executors`.

An executor is an object with the methods of `Executor` and one line in `pyproject.toml`, in tracebed or in another
package:

    [project.entry-points."tracebed.executors"]
    mine = "my_package.mine:EXECUTOR"

A machine, its rule of sleep or a policy may name its executor (`Machine.executor`, `Sleep.executor`, `executor:
ClassVar[str]` of the class of a policy).
Otherwise the simulator of tracebed simulates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import checked
from tracebed.ground.registry import Registry
from tracebed.machine.machine import Machine
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.setup import Setup

SIMULATOR = "simulator"
"""Name of the simulator of tracebed."""
REPLAYS = ("replay", "batch")
"""Names of the executors of tracebed whose runs are not predictions."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What each executor takes besides the setup. An executor adds its own options in a derived class."""

    name: str = "workload"
    """Name of the workload in reports."""
    on_progress: Callable[[int], None] | None = None
    """Called periodically with the number of jobs so far: submitted ones of a simulation, ended ones of a replay."""


@runtime_checkable
class Executor(Protocol):
    """What executes runs."""

    @property
    def options(self) -> type[Options]:
        """The class of its options."""

    @property
    def predicts(self) -> bool:
        """Whether its runs are predictions, which `simulate` makes."""

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        """Return whether runs on this machine under this setup are possible."""

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: Any) -> Run:
        """Execute a workload and return the run. `options` is an instance of `self.options`.

        Raises:
            InputError: the workload, a setting or an option cannot be used.
        """


EXECUTORS: Registry[Executor] = Registry("tracebed.executors", "executor")


def installed_executor(name: str) -> Executor:
    """Return an installed executor.

    Raises:
        InputError: there is no such executor, or its entry point does not name one.
    """
    loaded = EXECUTORS.load(name)
    if isinstance(loaded, type) or not isinstance(loaded, Executor):
        what = f"is not an executor: {loaded.__name__ if isinstance(loaded, type) else type(loaded).__name__}"
        hint = "the entry point names an instance with options, predicts, accepts and execute"
        raise InputError(what, where=EXECUTORS.entries[name].value, hint=hint)
    return loaded


def execute(
    workload: Workload,
    machine: Machine,
    setup: Setup,
    options: Options | None = None,
    *,
    executor: str | Executor = "",
) -> Run:
    """Execute a workload on a machine under a setup, and return the run.

    Args:
        workload: the submission list.
        machine: the machine.
        setup: the setup.
        options: the options of the executor; None: the defaults.
        executor: an executor, or the name of an installed one; empty: the one that the machine or the policy names, or
            the simulator.

    Raises:
        InputError: the executor is unknown or does not accept the machine with the setup; or as
            `Executor.execute`.
    """
    if isinstance(executor, str):
        ruled = machine.executor or (machine.sleep.executor if machine.sleep else "")
        name = executor or ruled or getattr(type(setup.policy()), "executor", "") or SIMULATOR
        chosen = installed_executor(name)
    else:
        name, chosen = getattr(executor, "name", type(executor).__name__), executor
    if not chosen.accepts(machine, setup):
        what = f"the executor {name} does not accept this machine with the policy {setup.scheduling.policy}"
        hint = "name another one" if executor else "use another policy, or name an executor"
        raise InputError(what, hint=hint)
    own = options if isinstance(options, chosen.options) else chosen.options(**vars(options or Options()))
    run: Run = checked(chosen.execute(workload, machine, setup, own), Run, f"executor {name}", chosen.execute)
    return run
