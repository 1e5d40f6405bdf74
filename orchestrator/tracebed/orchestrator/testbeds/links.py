"""The links of a testbed: the messages of agents, and the start, loss and restart of agents.

Everything runs in the thread of the testbed, except calls that may block: providers are called in other threads, and
their results are passed back by `Links.post`. Messages of agents are checked: an agent that the user of its node has
modified must not end the controller.
"""

from __future__ import annotations

import heapq
import math
import re
import selectors
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from tracebed.benchmarks.lines import Lines, Mailbox, decode
from tracebed.ground import system
from tracebed.ground.cpus import parse_cpus
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds.agent.attaching import ABSENT
from tracebed.orchestrator.testbeds.base import Event
from tracebed.orchestrator.testbeds.launcher import Launcher
from tracebed.orchestrator.testbeds.link import Link, await_ends
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.orchestrator.testbeds.provider import Channel

START_S = 60.0  # time in which agents must reply to the first message, s, plus 0.2 s per agent
UNSENT_LIMIT = 8 * 2**20  # maximum size of the buffer for an agent that does not read, bytes
STOP_S = 10.0  # time that `stop` waits for the ends of the agents that were lost before, s
DROP_S = 10.0  # longest time between the decision to give an agent up and the report that its node is lost, s
# Smallest step of the clock of a node that is reported, s. Pauses of this machine look like steps of some ms.
STEP_S = 0.01
PINGS = 4  # number of pings by which the clock of a node is measured before the node is used
ATTACHES = 3  # number of attempts to take over an agent before it is given up
# Part of the last words of an agent in an image without tracebed. Other nodes have the wheel of this machine.
LACKS_TRACEBED = "No module named 'tracebed"
PING_SHARES = 10  # number of bursts over which the pings of a heartbeat are spread
# Longest accepted line of an agent, bytes. The longest lines are the rates of all cores of a node.
LINE_LIMIT = 64 * 2**20
QUOTED = 200  # number of bytes of an invalid line that a message quotes

Types = tuple[type, ...]

NUMBER: Types = (int, float)
NOTHING = type(None)
JOB: dict[str, Types] = {"job": (str,), "rank": (str,)}
_OF_TYPE: dict[str, dict[str, Types]] = {
    "hello": {
        "version": (str,),
        "pid": (int,),
        "sockets": (str,),
        "attach": (str, NOTHING),
        "adopted": (list,),
        "host": (dict,),
        "units_per_core_second": (*NUMBER, NOTHING),
    },
    "facts": {"facts": (dict,)},
    "listening": {**JOB, "address": (str, list)},
    "started": JOB,
    "progress": JOB,
    "work": {**JOB, "samples": (list,)},
    "asks": {**JOB, "nodes": (int,)},
    "resized": {**JOB, "request": (int, NOTHING), "decided": NUMBER, "applied": NUMBER},
    "ended": {**JOB, "leader": (bool,), "state": (str,), "reason": (str, NOTHING)},
    "heartbeat": {"sample": (dict,)},
    "relay": {"to": (str,)},
    "measured": {"rates": (list,)},
    "reachable": {"address": (list,)},
    "reached": {"reason": (str, NOTHING)},
    "calibrated": {"units_per_core_second": (*NUMBER, NOTHING)},
    "stray": {**JOB, "threads": (int,), "cpus": (str,), "used": (str,)},
    "halted": {**JOB, "halted_s": (*NUMBER, NOTHING)},
    "warning": {"what": (str,)},
    "error": {"what": (str,)},
}
# Type of event -> the fields that the testbed and the replay read, with the types of their values.
FIELDS = {kind: {**fields, "time": NUMBER} for kind, fields in _OF_TYPE.items()}
# Figures of the stages of a resize in nodes, in wall seconds and MiB.
STAGES = ("decision_s", "spawn_s", "redistribution_s", "termination_s", "moved_mib")
CHECKSUM = re.compile("[0-9a-f]{16}")  # the checksum of a result
FIGURES = ("exit_code", "units_done", "cpu_s", "planned_s", "late_s", "overruns", "residual_s", "termination_s", "done")
# Fields that events of any type may have.
OPTIONAL: dict[str, Types] = {
    "n": (int,),
    "job": (str,),
    "rank": (str,),
    "hint": (str, NOTHING),
    "ping": (dict,),
    "cpus": (str,),
    "asked": (*NUMBER, NOTHING),
    "seen": (*NUMBER, NOTHING),
    "begun": (*NUMBER, NOTHING),
    "paused_s": NUMBER,
    "stages": (dict,),
    "checksum": (str, NOTHING),
    **dict.fromkeys(FIGURES, (*NUMBER, NOTHING)),
}
KNOWN: Types = (*NUMBER, NOTHING)
# Part of the facts of a node -> the fields that are read, with the types of their values.
FACTS: dict[str, dict[str, Types]] = {
    "host": {"cpu": (str,), "kernel": (str,)},
    "topology": {"sockets": (int,), "cpus": (int,)},
    "memory": {"total_mib": KNOWN, "free_mib": KNOWN},
    "disk": {"free_mib": KNOWN, "shared_free_mib": KNOWN},
    "cgroup": {"cpus": KNOWN, "memory_mib": KNOWN, "processes": KNOWN},
    "pressure": {"cpu": KNOWN, "io": KNOWN, "memory": KNOWN},
}
# Fields that the host of a `hello` may have. The host is kept in the run.
HOST: dict[str, Types] = {
    **dict.fromkeys(("name", "machine", "kernel", "cpu", "python", "kernel_of_jobs"), (str,)),
    **dict.fromkeys(("cores", "cpus", "memory_mib"), KNOWN),
    "boot_id": (str, NOTHING),
}
SAMPLE: dict[str, Types] = {"cpu_s": NUMBER}  # figures that each sample has
PING: dict[str, Types] = {"sent": NUMBER, "received": NUMBER}
LATE: dict[str, Types] = {"late_s": NUMBER}


class Links:
    """The links to the agents of all nodes."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.events: list[Event] = []  # those that the testbed has not returned yet
        self.adopted: dict[str, list[str]] = {}  # jobs on the agents taken over from another testbed, by node name
        self.held: dict[str, float] = {}  # since when these agents hold their ranks stopped, monotonic s
        self.out: dict[str, str] = {}  # nodes that were left out at the start, with the reason, by name
        self.restarting = False  # whether an agent that is lost, or does not start, is started again
        self._stopping = False
        self._links: list[Link] = []
        self._numbers: dict[str, int] = {}
        self._idle: set[Link] = set()  # links that are not up
        self._host_samplers: dict[str, int] = {}  # machine -> the node whose agent samples the machine
        self._ending: set[system.Background] = set()  # the ends of lost agents
        self._failed: set[Link] = set()  # links whose agent could not be started the last time
        self._due: list[tuple[float, int]] = []  # heap of due times with the indices of their links; some are outdated
        self._reports: deque[tuple[float, Callable[[], None]]] = deque()  # of dropped agents, with the latest times
        self._ping_at = 0.0
        self._share = 0  # the share of the links that is pinged next
        self._selector = system.current().selector()
        self._mailbox = Mailbox(self._selector)

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, node: int) -> Link:
        return self._links[node]

    def connect(
        self,
        launchers: Mapping[str, Launcher],
        adopt: Mapping[str, Mapping[str, Any]],
        asleep: Collection[str] = (),
    ) -> None:
        """Connect to an agent on each node, by name. The agents with facts in `adopt` may be running already.

        The nodes `asleep` get no agent until `wake`.
        """
        here = next((node for node in self.inventory.nodes if launchers[node.name].provider.shared), None)
        for index, node in enumerate(self.inventory.nodes):
            launcher = launchers[node.name]
            first = not launcher.provider.shared or node is here  # all shared nodes are on this machine
            self._links.append(Link(index, node, launcher, first=first))
        self._numbers = {link.node.name: link.index for link in self._links}
        for link in self._links:
            link.asleep = link.reported = link.node.name in asleep
        self._idle = {link for link in self._links if not link.asleep}
        for link in self._links:
            if not link.asleep:
                link.adopt = adopt.get(link.node.name)
                self._open(link)

    def await_all(self, *, drain: bool) -> None:
        """Wait until each agent is up or has failed. Raise the first failure, or with `drain` only if all fail."""
        while len(self._failed) < len(self._idle):
            self._raise_failure(drain)
            self.turn(None)
        self.out = {link.node.name: str(link.failure) for link in self._links if link in self._idle}
        self._raise_failure(drain and len(self._idle) < len(self._links))
        self.restarting = True
        for link in self._links:
            link.adopt = None
        for link in self._idle:
            link.reported = True
            self._postpone(link)

    def _raise_failure(self, tolerated: bool) -> None:
        if self._failed and not tolerated:
            first = min(self._failed, key=lambda link: link.index)
            assert first.failure is not None
            raise first.failure

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Send a message to the agent of a node without blocking. A message to a lost node is discarded."""
        lines = self._links[node].lines
        if lines is not None:
            lines.send(message)
            if len(lines.unsent) > UNSENT_LIMIT:
                self.drop(node, "has stopped reading messages")

    def drop(self, node: int, reason: str) -> None:
        """End the agent of a node in the background, then report it as lost, and start another one.

        The jobs of a lost node may start elsewhere, so their ranks must have ended before. A process that waits for a
        disk cannot be killed, and a node may not be reached: then the node is reported as lost after `DROP_S`.
        """
        link, reported = self._links[node], False
        if not link.up:
            return

        def report(words: str) -> None:
            nonlocal reported
            if not reported:
                reported = True
                self._lost(link, reason)

        self._give_up(link, report)
        self._reports.append((system.monotonic() + DROP_S, partial(report, "")))

    def sleep(self, node: int) -> None:
        """End the agent of a node, and start no other one until `wake`. When it has ended, `asleep` is reported.

        The loss of such an agent is not reported. If there is no agent, the node is asleep at once.
        """
        link = self._links[node]
        link.asleep = link.reported = True
        link.waking, link.retry_at = False, None

        def report(words: str) -> None:
            self.events.append(Event(node, {"type": "asleep"}, system.monotonic()))

        if link.channel is None:
            report("")
        else:
            self._give_up(link, report, bye=True)

    def wake(self, node: int) -> None:
        """Start the agent of a node that sleeps. `back` is reported, or `lost` if the agent does not start.

        After the loss, the agent is started again as that of any other node.
        """
        link = self._links[node]
        link.asleep, link.waking = False, True
        self._open_awaited(link)

    def _open_awaited(self, link: Link) -> None:
        """Start the agent of a node that wakes up, unless that is under way, or the agent before has not ended."""
        if link.waking and not (link.opening or link.ending or link.channel is not None or link.retry_at is not None):
            self._open(link)

    def turn(self, until: float | None) -> None:
        """Wait for messages or `until`, then process the messages and the links that are due."""
        overdue = self._reports[0][0] if self._reports else None
        due = [time for time in (until, self._ping_at, self._next_due(), overdue) if time is not None]
        for key, mask in system.current().wait(self._selector, min(due)):
            key.data(mask)
        now = system.monotonic()
        self._ping(now)
        while self._reports and now >= self._reports[0][0]:
            self._reports.popleft()[1]()
        while (at := self._next_due()) is not None and now >= at:
            link = self._links[heapq.heappop(self._due)[1]]
            if link.channel is None:
                self._open(link)
            else:
                self._give_up(link, partial(self._fail_timeout, link))

    def _next_due(self) -> float | None:
        """Return the earliest time at which a link is due; None: no link is due."""
        while self._due:
            at, index = self._due[0]
            if self._links[index].due == at:
                return at
            heapq.heappop(self._due)
        return None

    def _set_due(self, link: Link) -> None:
        if link.due is not None:
            heapq.heappush(self._due, (link.due, link.index))

    def _postpone(self, link: Link) -> None:
        """Try later to start the agent of a link again."""
        link.postpone()
        self._set_due(link)

    def _ping(self, now: float) -> None:
        """Ping the share of the links that is due, and the shares that are overdue after a long decision."""
        if now < self._ping_at:
            return
        shares = min(PING_SHARES, max(1, len(self._links)))
        between = self.inventory.heartbeat_s / shares
        for _ in range(shares):
            if now < self._ping_at:
                return
            for link in self._links[self._share :: shares]:
                if link.up:
                    link.ping()
            self._share = (self._share + 1) % shares
            self._ping_at += between
        self._ping_at = now + between

    def post(self, call: Callable[[], None]) -> None:
        """Schedule a call in the thread of the testbed."""
        self._mailbox.post(call)

    # -- new agents ------------------------------------------------------------------------------------------------

    def _open(self, link: Link) -> None:
        """Open a channel to the node, to an agent that is running already or to a fresh one."""
        link.retry_at = link.failure = None
        if not self.restarting:  # an agent that was up before sends its events again
            self.events = [event for event in self.events if event.node != link.index]
        link.held.clear()
        self._failed.discard(link)
        adopt = link.adopt or {}
        link.attached = bool(adopt.get("socket"))
        link.seen = adopt.get("seen") if link.attached else None
        link.opening = True
        arguments = ["--attach", str(adopt["socket"])] if link.attached else []
        link.launcher.open(link.node, arguments, partial(self._opened, link))

    def _opened(self, link: Link, result: Channel | TestbedError) -> None:
        """Send `hello` to the agent over its channel."""
        link.opening = False
        if isinstance(result, TestbedError):
            self._fail(link, result)
            return
        if self._stopping:
            result.kill()
            return
        if link.asleep:
            link.channel = result
            self._give_up(link, lambda words: None)
            return
        lines = Lines(self._selector, result.reader, result.writer, partial(self._from_agent, link), LINE_LIMIT)
        link.deadline = system.monotonic() + self._start_timeout_s()
        link.connect(result, lines, self.inventory)
        self._set_due(link)

    def _start_timeout_s(self) -> float:
        return START_S + len(self._links) / 5

    # -- messages of agents ----------------------------------------------------------------------------------------

    def _from_agent(self, link: Link, mask: int) -> None:
        """Process the messages of an agent."""
        lines = link.lines
        if lines is None:  # the link was given up in this turn
            return
        if mask & selectors.EVENT_WRITE:
            lines.flush()
        received, now = lines.receive(), system.monotonic()  # no message is sent after its arrival
        for line in received:
            message = read_event(line)
            if link.repeats(message):
                continue
            (self._handle if link.up else self._handle_first)(link, message, now)
            if link.lines is not lines:
                return
        if lines.closed:
            self._give_up(link, partial(self._lost if link.up and self.restarting else self._fail_ended, link))

    def _handle(self, link: Link, message: dict[str, Any], now: float) -> None:
        """Process a message of an agent that is up."""
        kind = message["type"]
        if kind == "relay":
            self._relay(message)
            return
        if kind == "heartbeat":
            if abs(step := link.echo(message, now)) > STEP_S:
                what = f"its clock has stepped by {step:.3g} s: its times since the last ping are wrong by as much"
                self.events.append(Event(link.index, {"type": "warning", "time": now, "what": what}, now))
            if "host" in message.get("sample", {}):
                sampler = self._host_samplers.setdefault(link.machine, link.index)
                if sampler != link.index:  # another agent samples the same machine
                    del message["sample"]["host"]
        self.events.append(Event(link.index, link.clock.convert(message, now), now))

    def _handle_first(self, link: Link, message: dict[str, Any], now: float) -> None:
        """Process a message of an agent that is not up yet: its `hello`, then the echoes of the first pings."""
        kind = message["type"]
        if kind == "error" and not link.hello:
            error = TestbedError(message["what"], where=link.where, hint=message.get("hint"))
            self._give_up(link, lambda words: self._fail(link, error))
            return
        if kind == "hello":
            link.handle_hello(message)
        elif kind == "heartbeat":
            link.echo(message, now)
        elif kind == "relay":  # an agent that is taken over sends it only once
            self._relay(message)
        else:
            link.early_events.append((message, now))
        if link.handshaking and (kind == "hello" or "ping" in message):
            if link.provider.shared or link.pings == PINGS:
                self._begin_use(link)
            else:
                link.ping_now()

    def _relay(self, message: Mapping[str, Any]) -> None:
        """Forward a message of a connection between ranks to the agent at its other end."""
        to = self._numbers.get(str(message.get("to")))
        if to is None:
            return
        link = self._links[to]
        if link.lines is None and link.attached:
            link.held.append(message)
        else:
            self.send(to, message)

    def _begin_use(self, link: Link) -> None:
        """Mark an agent as up, and process the events that arrived before."""
        name = link.node.name
        link.begin()
        link.waking = False
        self._idle.discard(link)
        self.adopted.pop(name, None)
        self.held.pop(name, None)
        if link.attached:
            self.adopted[name] = link.hello["adopted"]
            self.held[name] = link.hello["time"] - link.clock.offset_s - link.hello.get("paused_s", 0.0)
        if link.reported:
            link.reported = False
            self.out.pop(name, None)
            self.events.append(Event(link.index, {"type": "back"}, system.monotonic()))
        self.events += [Event(link.index, link.clock.convert(message, at), at) for message, at in link.early_events]
        link.early_events.clear()

    # -- lost agents -----------------------------------------------------------------------------------------------

    def _give_up(self, link: Link, then: Callable[[str], None], *, bye: bool = False) -> None:
        """End an agent in the background, and pass the reason of its exit to `then`: none if it ends at a `bye`."""
        channel, end = None if bye else link.channel, link.disconnect(bye=bye)
        link.ending += 1
        self._idle.add(link)
        if self._host_samplers.get(link.machine) == link.index:
            del self._host_samplers[link.machine]

        def work() -> None:
            words = ""
            try:
                try:
                    words = "" if channel is None else channel.exit_reason()
                finally:
                    end()
            except Exception as error:  # noqa: BLE001  an error of a provider must not leave the node out forever
                words = words or f"cannot be ended: {error}"
            self.post(lambda: finish(words))

        def finish(words: str) -> None:
            link.ending -= 1
            then(words)
            self._open_awaited(link)

        ending = system.current().start(work, f"end of {link.node.name}")
        self._ending = {ending, *(other for other in self._ending if other.is_alive())}

    def _lost(self, link: Link, reason: str) -> None:
        """Report that the agent of a node is lost, and start another one after a pause."""
        if not link.reported:
            link.reported = True
            self.events.append(Event(link.index, {"type": "lost", "reason": reason}, system.monotonic()))
        if not link.asleep:
            self._postpone(link)

    def _fail_ended(self, link: Link, words: str) -> None:
        if link.attached:
            link.attaches += 1
            if link.attaches < ATTACHES and ABSENT not in words:  # the agent may still wait
                self._postpone(link)
                return
        hint = "install tracebed in the image, or set `base` in place of `image`" if LACKS_TRACEBED in words else None
        self._fail(link, TestbedError(f"its agent {words}", where=link.where, hint=hint))

    def _fail_timeout(self, link: Link, words: str) -> None:
        last = words.partition(": ")[2]
        hint = f"its log ends with: {last}" if last else "its log is empty"
        what = f"its agent did not start within {self._start_timeout_s():g} s"
        self._fail(link, TestbedError(what, where=link.where, hint=hint, transient=True))

    def _fail(self, link: Link, error: TestbedError) -> None:
        """Record why an agent has not started, and try again after a pause, unless the testbed is starting."""
        if link.attached and not self._stopping:  # the agent that could be taken over has gone
            link.adopt = None
            self._open(link)
            return
        link.failure = error
        self._failed.add(link)
        if link.waking:
            link.waking = False
            lost = {"type": "lost", "reason": f"did not start: {error}"}
            self.events.append(Event(link.index, lost, system.monotonic()))
        if self.restarting and not link.asleep:
            self._postpone(link)

    # -- stop ------------------------------------------------------------------------------------------------------

    def send_bye(self, until: float) -> None:
        """Send `bye` to the agents, and wait until they have ended or `system.monotonic()` is `until`."""
        self.restarting, self._stopping = False, True
        leaving: dict[int, Link] = {}
        for link in self._links:
            link.retry_at = None
            if link.lines is not None and link.channel is not None and link.hello:
                link.lines.send({"type": "bye"})
                if not link.lines.unsent:  # otherwise the agent does not read
                    leaving[link.channel.reader] = link
                link.lines.forget()
                link.channel.close()
        for reader in await_ends(leaving, until):
            leaving[reader].ended = True

    def close(self) -> None:
        """Wait for the ends of lost agents, kill agents that are being started, and discard all events."""
        until = system.monotonic() + STOP_S
        for ending in self._ending:
            ending.join(max(0.0, until - system.monotonic()))
        self._mailbox.run()
        self.events.clear()


def read_event(line: bytes) -> dict[str, Any]:
    """Return the event in a line of an agent. An invalid line is an `error` of the agent."""
    try:
        event = decode(line)
        _check(event)
    except ValueError:
        return {"type": "error", "what": f"its agent wrote an invalid message: {line[:QUOTED]!r}"}
    return event


def _check(event: dict[str, Any]) -> None:
    """Raise ValueError if an event has an unknown type, lacks a field, or has a field of another type."""
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ValueError
    _require(event, FIELDS[kind])
    for name, value in event.items():
        if name in OPTIONAL and type(value) not in OPTIONAL[name]:
            raise ValueError
    if "ping" in event:
        _require(event["ping"], PING)
    if "stages" in event:
        _check_stages(event["stages"])
    if event.get("checksum") is not None and not CHECKSUM.fullmatch(event["checksum"]):
        raise ValueError
    if kind == "resized" and "cpus" in event:
        _check_cpus(event["cpus"])
    for sample in event["samples"] if kind == "work" else ():
        if not isinstance(sample, list) or not all(type(value) in NUMBER for value in sample) or len(sample) != 5:
            raise ValueError
    if kind == "heartbeat":
        if "late_s" in event:
            _require(event, LATE)
        _check_sample(event["sample"])
    if kind == "facts":
        _check_facts(event["facts"])
    if kind == "hello":
        if not all(isinstance(job, str) for job in event["adopted"]) or not event["host"].keys() <= HOST.keys():
            raise ValueError
        _require(event["host"], {name: HOST[name] for name in event["host"]})


def _check_stages(stages: dict[str, Any]) -> None:
    """Raise ValueError if a stage of a resize is unknown, or has an invalid figure."""
    _require_figures(stages)
    if not stages.keys() <= {*STAGES} or not all(0 <= (figure or 0) < math.inf for figure in stages.values()):
        raise ValueError


def _check_cpus(text: str) -> None:
    """Raise ValueError if `text` is not a CPU list."""
    try:
        parse_cpus(text)
    except InputError as error:
        raise ValueError from error


def _check_sample(sample: dict[str, Any]) -> None:
    """Raise ValueError if a figure of a sample is missing or invalid."""
    figures = {name: value for name, value in sample.items() if name != "host"}
    _require_figures(figures)
    _require(figures, SAMPLE)
    if {"busy_s", "steal_s"} & figures.keys():
        _require(figures, {"busy_s": NUMBER, "steal_s": NUMBER})
    if "host" in sample:
        _require_figures(sample["host"])
        _require(sample["host"], {"cpus": (int,)})
        if sample["host"]["cpus"] < 1:
            raise ValueError


def _check_facts(facts: dict[str, Any]) -> None:
    """Raise ValueError if a fact that is read is missing or invalid."""
    lists = {"cpus_by_socket": (list,), "governor": (list,), "load": (list,)}
    _require(facts, {"cpus": (str,), "python": (str,), "clock_s": NUMBER, **dict.fromkeys(FACTS, (dict,)), **lists})
    for name, expected in FACTS.items():
        _require(facts[name], expected)
    texts = [*facts["cpus_by_socket"], *facts["governor"]]
    if facts["topology"]["cpus"] < 1 or not facts["load"] or not all(isinstance(text, str) for text in texts):
        raise ValueError
    if not all(type(load) in NUMBER for load in facts["load"]):
        raise ValueError
    try:
        valid = all(parse_cpus(text) for text in (facts["cpus"], *facts["cpus_by_socket"]))
    except InputError as error:
        raise ValueError from error
    if not valid or not facts["cpus_by_socket"]:
        raise ValueError


def _require(fields: dict[str, Any], expected: dict[str, Types]) -> None:
    for name, types in expected.items():
        if name not in fields or type(fields[name]) not in types:
            raise ValueError


def _require_figures(fields: Any) -> None:
    """Raise ValueError unless `fields` are figures by name."""
    if not isinstance(fields, dict):
        raise ValueError
    _require(fields, dict.fromkeys(fields, (*NUMBER, NOTHING)))
