"""The simulation of programs on a machine, in Python: slow, and the reference of evolving.c.

Computations and messages are activities with a remaining amount and a rate. Rates change only at instants at which an
activity begins or ends: the cores of a node are shared equally among its computing processes, and the links max-min
fairly among the messages on them (a fluid model: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2). An
activity is updated only when its rate changes. Therefore evolving.c, which updates only the affected nodes and links,
computes the same sums in the same order and gives bit-identical times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracebed.orchestrator.evolving.machine import AllocationPlan, LeakVariant, Machine, ProgramOutcome
from tracebed.orchestrator.evolving.programs import Programs, StepKind
from tracebed.orchestrator.scheduling.shapes import snake


def max_min(routes: Mapping[int, Sequence[int]], bandwidth: float) -> dict[int, float]:
    """Return the max-min fair rate of each message, given the links of each message and their bandwidths.

    Again and again, the link with the least bandwidth left per message (of several, the first) fixes the rate of its
    messages.
    """
    open_messages = {link: [m for m in routes if link in routes[m]] for link in {i for r in routes.values() for i in r}}
    left = dict.fromkeys(open_messages, bandwidth)
    rates: dict[int, float] = {}
    while len(rates) < len(routes):
        rate, narrowest = min((left[link] / len(open_messages[link]), link) for link in left if open_messages[link])
        for message in list(open_messages[narrowest]):
            rates[message] = rate
            for link in routes[message]:
                left[link] -= rate
                open_messages[link].remove(message)
    return rates


@dataclass
class Activity:
    """A computation or a message on its way."""

    owner: int
    """The process that computes, or the message."""
    number: int
    """The order of activities. Those that end at the same instant end in this order."""
    amount: float
    since: float
    """Time at which `amount` was left."""
    rate: float = 0.0
    end: float = math.inf

    def left(self, now: float) -> float:
        """Return the amount left."""
        return max(0.0, self.amount - self.rate * (now - self.since))

    def run(self, rate: float, now: float) -> None:
        """Continue at this rate."""
        if rate != self.rate:
            self.amount, self.since, self.rate = self.left(now), now, rate
            self.end = now + self.amount / rate


@dataclass
class SimulatedProcess:
    """The state of a process: its node and its next step."""

    job: int
    step: int
    """The next step."""
    node: int = -1
    """The node of a process that was started."""
    core_since: float = math.nan
    """Time since which a core is allocated to the process; NaN: none is."""
    ended: bool = False
    joined_by: int = -1
    """The process that waits for the end of this process."""
    is_first: bool = False
    """Whether the process exists from the start of its job."""


@dataclass
class Message:
    """The state of a message."""

    sent: bool = False
    awaited: bool = False
    travels: bool = False
    arrived: bool = False


@dataclass
class ReferenceSimulation:
    """The state of a machine and of the programs on it."""

    programs: Programs
    machine: Machine
    plan: AllocationPlan
    now: float = 0.0
    activities: int = 0
    computing: dict[int, Activity] = field(default_factory=dict)
    """Process -> computation."""
    starting: dict[int, Activity] = field(default_factory=dict)
    """Message -> its latency."""
    flowing: dict[int, Activity] = field(default_factory=dict)
    """Message -> the message on its way."""
    routes: dict[int, list[int]] = field(default_factory=dict)
    """Message on its way -> its links."""
    ready: deque[int] = field(default_factory=deque)
    """Processes that can continue."""
    waiting: deque[int] = field(default_factory=deque)
    """Jobs that wait for a core, in the order of their starts."""

    def __post_init__(self) -> None:
        """Create the processes, messages and jobs in their initial states."""
        p, count = self.programs, len(self.programs)
        self.jobs = range(count)
        self.synchronous = p.communication == "synchronous"
        self.processes = [
            SimulatedProcess(job, int(p.steps[number]), is_first=bool(p.parent[number] < 0))
            for job in self.jobs
            for number in range(p.processes[job], p.processes[job + 1])
        ]
        self.messages = [Message() for _ in range(len(p.size))]
        self.idle = [self.machine.cores] * len(self.machine.grid)
        """Idle cores of each node under dynamic allocation."""
        self.held: list[dict[int, int]] = [{} for _ in self.jobs]
        """The nodes on which a job has cores under dynamic allocation, in the order of allocation, and how many."""
        self.alive = [0] * count
        """Number of processes of a job that have not ended, started or not; 0: the job does not run."""
        self.first_node = np.concatenate([[0], np.cumsum(p.nodes)])
        self.start, self.end, self.work, self.core_s = (np.full(count, value) for value in (np.nan, np.nan, 0.0, 0.0))
        self.accepted, self.completed = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)

    def run(self) -> ProgramOutcome:
        """Simulate until no job runs, and return the outcome."""
        starts = deque(sorted((time, job) for job, time in enumerate(self.plan.start.tolist()) if not math.isnan(time)))
        cancels = deque(
            sorted((time, job) for job, time in enumerate(self.plan.cancel.tolist()) if math.isfinite(time))
        )
        while instants := [
            *(activity.end for activity in self.all_activities()),
            *(queue[0][0] for queue in (starts, cancels) if queue),
        ]:
            self.now = min(instants)
            for activity in sorted(self.all_activities(), key=lambda activity: activity.number):
                if activity.end == self.now:
                    self.finish(activity)
                    self.advance()
            self.admit()
            while starts and starts[0][0] <= self.now:
                self.submit(starts.popleft()[1])
            while cancels and cancels[0][0] <= self.now:
                self.cancel(cancels.popleft()[1])
            self.admit()
            self.share()
        results = (self.accepted, self.start, self.end, self.completed, self.work, self.core_s)
        return ProgramOutcome.of(self.programs, self.machine, self.plan, *results)

    def all_activities(self) -> Iterator[Activity]:
        """Yield all activities."""
        for activities in (self.computing, self.starting, self.flowing):
            yield from activities.values()

    def activity(self, owner: int, amount: float) -> Activity:
        """Return a new activity."""
        self.activities += 1
        return Activity(owner, self.activities, amount, self.now)

    def share(self) -> None:
        """Update the rate of each activity."""
        on_node: dict[int, int] = {}
        for number in self.computing:
            node = self.processes[number].node
            on_node[node] = on_node.get(node, 0) + 1
        for number, computation in self.computing.items():
            computation.run(min(1.0, self.machine.cores / on_node[self.processes[number].node]), self.now)
        for message, rate in max_min(self.routes, self.machine.bandwidth).items():
            self.flowing[message].run(rate, self.now)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Return whether there is no core for another job."""
        return self.plan.leak is not None and not any(map(self.is_free, range(len(self.idle))))

    def is_free(self, node: int) -> bool:
        """Return whether a search finds a node: it has an idle core, or with `by_nodes` idle cores only."""
        return self.idle[node] >= (self.machine.cores if self.plan.by_nodes else 1)

    def submit(self, job: int) -> None:
        """Add a job to the waiting jobs. Reject it if its cancellation is due, or if jobs do not wait."""
        self.accepted[job] = self.plan.cancel[job] >= self.now and (self.plan.waits or not self.is_full())
        if self.accepted[job]:
            self.waiting.append(job)
            self.admit()

    def admit(self) -> None:
        """Start the waiting jobs for which there is a core."""
        while self.waiting and not self.is_full():
            self.begin(self.waiting.popleft())
            self.advance()

    def begin(self, job: int) -> None:
        """Start a job with the processes that exist from the start."""
        first, end = self.programs.processes[job : job + 2].tolist()
        self.start[job] = self.now
        self.alive[job] = end - first
        for number in range(first, end):
            if self.programs.parent[number] < 0:
                self.place(number, first)

    def cancel(self, job: int) -> None:
        """End a job that still runs or waits."""
        if job in self.waiting:
            self.waiting.remove(job)
            self.end[job] = self.now
        if not self.alive[job]:
            return
        for number in range(*self.programs.processes[job : job + 2]):
            computation = self.computing.pop(number, None)
            if computation:
                self.work[job] += self.programs.amount[self.processes[number].step] - computation.left(self.now)
            self.release(self.processes[number])
        for message in range(*self.programs.messages[job : job + 2]):
            self.starting.pop(message, None)
            if self.flowing.pop(message, None):
                del self.routes[message]
        self.alive[job] = 0
        self.end[job] = self.now

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def place(self, number: int, parent: int) -> None:
        """Start a process, created by `parent`, on a node."""
        process = self.processes[number]
        job = process.job
        if self.plan.nodes is not None:
            process.node = int(self.plan.nodes[self.first_node[job] + self.programs.home[number]])
        else:
            home = self.programs.home
            at_home = self.plan.by_nodes and number != parent and home[number] == home[parent]
            found = None if at_home else self.search(job, self.processes[parent].node)
            process.node = node = self.processes[parent].node if found is None else found
            if self.idle[node]:
                process.core_since = self.now
                self.idle[node] -= 1
                self.held[job][node] = self.held[job].get(node, 0) + 1
        self.ready.append(number)

    def search(self, job: int, origin: int) -> int | None:
        """Return the free node where a process created on `origin` starts (Linnert et al. 2024, figure 10)."""
        neighbours = self.machine.grid.neighbours
        if origin >= 0:
            for source in (origin, *self.held[job]):
                for node in (source, *neighbours[source]):
                    if self.is_free(node):
                        return node
        if origin < 0 or self.plan.leak == LeakVariant.NONCONTIGUOUS:
            return next((node for node in snake(self.machine.grid, job) if self.is_free(node)), None)
        return None

    def release(self, process: SimulatedProcess) -> None:
        """Release the core of a process, if it has one."""
        if not math.isnan(process.core_since):
            self.core_s[process.job] += self.now - process.core_since
            process.core_since = math.nan
            self.idle[process.node] += 1
            held = self.held[process.job]
            held[process.node] -= 1
            if not held[process.node]:
                del held[process.node]

    # -- processes and messages ----------------------------------------------------------------------------------------

    def finish(self, activity: Activity) -> None:
        """End an activity, and continue the processes that wait for it."""
        owner = activity.owner
        if self.computing.get(owner) is activity:
            process = self.processes[owner]
            self.work[process.job] += self.programs.amount[process.step]
            process.step += 1
            del self.computing[owner]
            self.ready.append(owner)
        elif self.starting.get(owner) is activity:
            del self.starting[owner]
            self.flow(owner)
        else:
            del self.flowing[owner], self.routes[owner]
            self.arrive(owner)

    def advance(self) -> None:
        """Execute the steps of the ready processes until each of them waits or has ended."""
        while self.ready:
            number = self.ready.popleft()
            process, last = self.processes[number], self.programs.steps[number + 1]
            while process.step < last and self.is_done(number, process.step):
                process.step += 1
            if process.step == last:
                self.end_process(process)

    def is_done(self, number: int, step: int) -> bool:
        """Do a step of a process; return False if the process must wait."""
        kind, argument = self.programs.kind[step], int(self.programs.argument[step])
        if kind == StepKind.COMPUTE:
            return self.compute(number, float(self.programs.amount[step]))
        if kind == StepKind.FORK:
            self.place(argument, number)
            return True
        if kind == StepKind.JOIN:
            self.processes[argument].joined_by = number
            if self.processes[argument].ended:
                self.release(self.processes[argument])
            return self.processes[argument].ended
        message = self.messages[argument]
        if message.arrived:
            return True
        if kind == StepKind.SEND:
            message.sent = True
        else:
            message.awaited = True
        self.transfer(argument)
        return bool(kind == StepKind.SEND and not self.synchronous)

    def compute(self, number: int, work: float) -> bool:
        """Begin a computation; return True if it has no work."""
        if work > 0.0:
            self.computing[number] = self.activity(number, work)
        return work <= 0.0

    def transfer(self, number: int) -> None:
        """Begin the transfer of a message, if both its sender and its receiver have reached it."""
        message, sender, receiver = self.messages[number], *self.ends_of(number)
        if message.travels or not message.sent or receiver.node < 0 or (self.synchronous and not message.awaited):
            return
        message.travels = True
        latency = self.machine.latency * len(self.machine.route(sender.node, receiver.node))
        if latency > 0.0:
            self.starting[number] = self.activity(number, latency)
            self.starting[number].run(1.0, self.now)
        else:
            self.flow(number)

    def flow(self, number: int) -> None:
        """Start the flow of a message on its route. A message within a node, or of size 0, arrives at once."""
        sender, receiver = self.ends_of(number)
        route, size = self.machine.route(sender.node, receiver.node), float(self.programs.size[number])
        if route and size > 0.0:
            self.flowing[number], self.routes[number] = self.activity(number, size), route
        else:
            self.arrive(number)

    def arrive(self, number: int) -> None:
        """End the transfer of a message, and continue with the processes that wait for it."""
        message = self.messages[number]
        message.arrived = True
        if self.synchronous:
            self.ready.append(int(self.programs.sender[number]))
        if message.awaited:
            self.ready.append(int(self.programs.receiver[number]))

    def ends_of(self, message: int) -> tuple[SimulatedProcess, SimulatedProcess]:
        """Return the sender and the receiver of a message."""
        return self.processes[self.programs.sender[message]], self.processes[self.programs.receiver[message]]

    def end_process(self, process: SimulatedProcess) -> None:
        """End a process, and its job if it is the last one."""
        process.ended = True
        if process.joined_by >= 0 or process.is_first or not self.plan.joins_release:
            self.release(process)
        if process.joined_by >= 0:
            self.ready.append(process.joined_by)
        self.alive[process.job] -= 1
        if not self.alive[process.job]:
            self.end[process.job] = self.now
            self.completed[process.job] = True
            for number in range(*self.programs.processes[process.job : process.job + 2]):
                self.release(self.processes[number])
