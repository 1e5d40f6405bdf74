"""Slurm's power saving in the simulation of a cluster: its inputs, and the states of power of the nodes of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.machine.power import PowerState
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.power_saving import NEVER
from tracebed.slurm.simulation.inputs import POWER_LOOP_S, SUSPEND, Inputs, Outcome, PowerSaving


def with_saving(inputs: Inputs, cluster: SlurmCluster, seed: int) -> Inputs:
    """Return the inputs of a simulation with the power saving of the cluster.

    The phase of the looks of slurmctld is drawn from `seed`. An InputError says what is not modeled beside it, or that
    a node boots for too long.
    """
    rules = cluster.saving
    assert rules
    modes = inputs.preemption.mode if inputs.preemption and any(inputs.preemption.may) else ()
    beside = {
        "outages": inputs.availability is not None,
        "a layer that resizes jobs": inputs.resizing is not None,
        "jobs that are suspended (PreemptMode=SUSPEND)": SUSPEND in modes,
    }
    if what := next((what for what, given in beside.items() if given), ""):
        hint = "leave out the file of the power of nodes: then no node is switched off"
        raise InputError(f"{what}: not modeled beside Slurm's power saving", hint=hint)
    number = {name: node for node, (name, _) in enumerate(cluster.nodes)}
    members = {each.name: cluster.members(place) for place, each in enumerate(cluster.partitions)}
    spared = [number[name] for name in _hosts(rules.spared) if name in number]
    spared += [node for name in rules.spared_partitions for node in members.get(name, ())]
    kept = [mask_of([number[name] for name in _hosts(names) if name in number]) for names in rules.kept]
    suspend, boots = list[int](), list[float]()
    times = cluster.power_times()
    for (name, kind), (idle, down, up) in zip(cluster.nodes, times, strict=True):
        power = kind.power
        suspend.append(idle if power else NEVER)
        boots.append(power.boot_s if power else 0.0)
        if not power or (idle == NEVER and not kind.cloud):
            continue
        hint = "correct the file of the power of nodes, or the slurm.conf"
        if power.boot_s > up:
            raise InputError(f"node {name} boots for {power.boot_s:g} s: ResumeTimeout is {up} s", hint=hint)
        if power.shutdown_s > down:
            what = f"node {name} is switched off for {power.shutdown_s:g} s: SuspendTimeout is {down} s"
            raise InputError(what, hint=hint)
    saving = PowerSaving(
        suspend_s=suspend,
        suspend_timeout_s=[down for _, down, _ in times],
        boot_s=boots,
        off=[kind.cloud and kind.power is not None for _, kind in cluster.nodes],
        spared=mask_of(spared),
        kept=[(mask, least or mask.bit_count()) for mask, least in zip(kept, rules.kept.values(), strict=True)],
        suspend_rate=rules.suspend_rate,
        resume_rate=rules.resume_rate,
        interval_s=rules.interval_s,
        least_interval_s=rules.least_interval_s,
        phase_s=np.random.default_rng([seed, 5]).uniform(0.0, POWER_LOOP_S),
        linear=not cluster.shared,
    )
    return replace(inputs, saving=saving)


def _hosts(names: str) -> list[str]:
    return host_names(names) if names else []


def enter_states(record: ScheduleRecord, cluster: SlurmCluster, inputs: Inputs, outcome: Outcome) -> None:
    """Write the states of power of the nodes into the record.

    `SuspendProgram` takes the time of the shutdown of a node, `ResumeProgram` that of its boot, and slurmctld runs both
    when it decides. A node whose boot or shutdown is not over when the run ends has the states to come, too.
    """
    assert inputs.saving
    power = [kind.power for _, kind in cluster.nodes]
    for node, off in enumerate(inputs.saving.off):
        if off:
            record.power.add(node, float(min(inputs.submit)), PowerState.OFF)
    for node, at, on in outcome.switched:
        own = power[node]
        assert own
        record.power.add(node, at, PowerState.BOOT if on else PowerState.SHUTDOWN)
        record.power.add(node, at + (own.boot_s if on else own.shutdown_s), PowerState.ON if on else PowerState.OFF)
