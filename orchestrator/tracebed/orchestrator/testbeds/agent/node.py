"""The node of an agent: its CPUs, its jobs, its heartbeats, and the measurements on it."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracebed.benchmarks.kernels import Kernel, calibrate, kernel_name, work_rates
from tracebed.benchmarks.lines import Mailbox
from tracebed.ground import system
from tracebed.ground.cpus import LARGEST_NODE, parse_cpus
from tracebed.ground.errors import InputError
from tracebed.orchestrator.testbeds.agent.claims import check_cpus, claim_cpus
from tracebed.orchestrator.testbeds.agent.facts import node_facts
from tracebed.orchestrator.testbeds.agent.jobs import RankManager
from tracebed.orchestrator.testbeds.agent.launching import NodeDescription
from tracebed.orchestrator.testbeds.agent.machine import Machine
from tracebed.orchestrator.testbeds.agent.messages import LONGEST_S, MessageFields, Outbox
from tracebed.orchestrator.testbeds.agent.spool import plain_name

NEVER = float("inf")
# For each core and window: units per second of CPU time, and CPU time over wall time.
CoreRates = list[list[tuple[float, float]]]
CHUNK_S = 0.002  # Duration of a call of the kernel on the other cores, s. They end with the measurement.


class AgentNode:
    """The node of an agent, as described by the first `hello`."""

    def __init__(
        self,
        fields: MessageFields,
        selector: selectors.BaseSelector,
        outbox: Outbox,
        sockets: Path,
        machine: Machine,
    ) -> None:
        """Claim the CPUs of the node, pin this process to them, and measure their rate if that is requested."""
        self.description = read_node(fields)
        calibrated, with_host = fields.flag("calibrate"), "host" not in fields or fields.flag("host")
        machine.make_spool(self.description.spool)
        self.selector, self.outbox, self.machine = selector, outbox, machine
        self.claims: list[socket.socket] = []
        if not self.description.emulated:
            check_cpus(self.description.cpus)
            self.claims = claim_cpus(self.description.cpus)
            os.sched_setaffinity(0, self.description.cpus)
        # Units of work per second of CPU time of a CPU; None: not measured.
        self.rate = self._rate() if calibrated and not self.description.emulated else None
        self.sampler = machine.sampler(() if self.description.emulated else self.description.cpus, host=with_host)
        self.host = (machine.facts() if with_host else {}) | (
            {} if self.description.emulated else {"kernel_of_jobs": kernel_name()}
        )
        self.jobs = RankManager(selector, outbox, self.description, sockets, machine)
        self.connection_test = machine.connection_test(selector, outbox)
        self.heartbeat_s = self.heartbeat_due = NEVER
        self.ping: dict[str, float] | None = None  # the last `ping` since the last heartbeat

    # Heartbeats.

    def set_heartbeat(self, seconds: float) -> None:
        """Send a heartbeat every `seconds` s from now on."""
        self.heartbeat_s = seconds
        self.heartbeat_due = system.monotonic() + seconds

    def tick(self) -> None:
        """Report ranks that have ended, and send a heartbeat if it is due."""
        self.jobs.tick()
        now = system.monotonic()
        if now >= self.heartbeat_due:
            late = now - self.heartbeat_due
            self.heartbeat_due = now + self.heartbeat_s
            self._beat(late_s=round(late, 6))

    def _beat(self, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            # This blocks if the disk hangs: a node whose jobs cannot write must be silent.
            self.machine.touch(self.description.spool)
        ranks = self.jobs.ranks.values()
        commands = [rank.pid for rank in ranks if rank.launch.program.command]
        sample = self.sampler.sample([rank.pid for rank in ranks], commands)
        if self.ping is not None:
            fields["ping"], self.ping = self.ping, None
        self.outbox.send_unnumbered("heartbeat", jobs=list(self.jobs.ranks), sample=sample, **fields)

    # Requests.

    def echo(self, fields: MessageFields) -> None:
        """Keep a `ping` for the next heartbeat."""
        self.ping = {"sent": fields.number("time", -LONGEST_S, LONGEST_S), "received": system.monotonic()}

    def facts(self, message: dict[str, Any]) -> None:
        """Send the facts of the node."""
        self.outbox.send("facts", facts=node_facts(self.description.spool))

    def sample(self, message: dict[str, Any]) -> None:
        """Answer with a heartbeat. With `calibrate`, another event reports the rate of a CPU; no job may run then."""
        calibrated = MessageFields(message).flag("calibrate")
        self._beat()  # before the calibration: its CPU time is not part of a job
        if calibrated and self.jobs.ranks:
            raise InputError("a node with running jobs cannot be calibrated")
        if calibrated:
            self.outbox.send("calibrated", units_per_core_second=None if self.description.emulated else self._rate())
            self.set_heartbeat(self.heartbeat_s)  # a calibration does not count as lateness of the heartbeat

    def measure(self, message: dict[str, Any]) -> None:
        """Measure the work rate of cores of the node, all at once, in the background. The event `measured` has it."""
        from tracebed.benchmarks.kernels.stream import kernel_of  # most agents measure nothing, and must start fast

        fields = MessageFields(message)
        windows, seconds = fields.whole("windows", 1, 10**6), fields.number("seconds", 0.001, LONGEST_S)
        cores = fields.whole("cores", 1, len(self.description.cpus)) if "cores" in fields else None
        if self.description.emulated or self.jobs.ranks:
            raise InputError("only a computing node without ranks can be measured")
        kernel = kernel_of(fields.text("kernel") if "kernel" in fields else "pils")
        beside = kernel_of(fields.text("beside")) if "beside" in fields else None
        if beside and (cores is None or cores == len(self.description.cpus)):
            raise InputError("no core is left for the kernel beside the measured one", hint="measure fewer cores")
        mailbox = Mailbox(self.selector)

        def measure() -> None:
            chosen, others = self.description.cpus[:cores], self.description.cpus[cores:] if beside else ()
            rates = core_rates(chosen, windows, seconds, kernel, others=others, beside=beside)
            mailbox.post(lambda: self.outbox.send("measured", rates=rates))

        threading.Thread(target=measure, daemon=True).start()

    def _rate(self) -> float:
        """Measure the rate of a CPU of the jobs, in units of work per second of CPU time."""
        os.sched_setaffinity(0, self.description.cpus[:1])
        rate = calibrate()
        os.sched_setaffinity(0, self.description.cpus)
        return rate


def read_node(fields: MessageFields) -> NodeDescription:
    """Return the node that a `hello` describes."""
    node = MessageFields(fields.object("node"))
    cores, emulated = node.whole("cores", 1, LARGEST_NODE), node.flag("emulated")
    cpus = tuple(range(cores)) if emulated else parse_cpus(node.text("cpus"))
    if len(cpus) != cores:
        raise InputError(f"the node has {cores} cores, but {len(cpus)} CPUs")
    spool = Path(fields.text("spool"))
    if not spool.is_absolute():
        raise InputError(f"the spool {str(spool)!r} is not an absolute path")
    return NodeDescription(plain_name(node.text("name")), cpus, emulated, spool)


def core_rates(
    cpus: Sequence[int],
    windows: int,
    seconds: float,
    kernel: Kernel,
    *,
    others: Sequence[int] = (),
    beside: Kernel | None = None,
) -> CoreRates:
    """Measure all of `cpus` at once, as a job uses them: `windows` windows of `seconds` s of each CPU.

    The threads of this process share `kernel`. Meanwhile the CPUs `others` are idle, or run the kernel `beside`.
    """
    from concurrent.futures import ThreadPoolExecutor  # most agents measure nothing, and must start fast

    finished = threading.Event()

    def measure(cpu: int) -> list[tuple[float, float]]:
        os.sched_setaffinity(0, [cpu])
        return work_rates(windows, seconds, kernel)

    def disturb(cpu: int, neighbor: Kernel) -> None:
        os.sched_setaffinity(0, [cpu])
        first, count = 0, 1
        while not finished.is_set():
            begun = system.monotonic()
            neighbor(first, count)
            first += count
            if system.monotonic() - begun < CHUNK_S / 2:
                count *= 2

    with ThreadPoolExecutor(len(cpus) + len(others)) as pool:
        disturbing = [pool.submit(disturb, cpu, beside) for cpu in others] if beside else []
        try:
            rates = list(pool.map(measure, cpus))
        finally:
            finished.set()
        for neighbor in disturbing:
            neighbor.result()
    return rates
