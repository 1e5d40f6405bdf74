"""Programs of jobs: processes that compute, send, receive, fork and join, in flat arrays.

Amounts are in seconds: work on one core, and the size of a message as its time on one idle link of bandwidth 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
Array = TypeVar("Array", FloatArray, IntArray)
# `asynchronous`: a send returns at once. `synchronous`: a send lasts until the message is received.
Communication = Literal["asynchronous", "synchronous"]
COMMUNICATIONS: tuple[Communication, ...] = get_args(Communication)


class StepKind(IntEnum):
    """Kinds of steps. The numbers are defined in machine.h."""

    COMPUTE = 0  # compute `amount` seconds of work
    SEND = 1  # send the message `argument`
    RECEIVE = 2  # receive the message `argument`
    FORK = 3  # start the process `argument`
    JOIN = 4  # wait for the end of the process `argument`


@dataclass(frozen=True)
class Programs:
    """The programs of jobs. Processes, steps and messages are numbered over all jobs."""

    nodes: IntArray
    """Number of nodes of each job, shape (jobs,)."""
    processes: IntArray
    """First process of each job, and the number of all processes, shape (jobs + 1,)."""
    messages: IntArray
    """First message of each job, and the number of all messages, shape (jobs + 1,)."""
    steps: IntArray
    """First step of each process, and the number of all steps, shape (processes + 1,)."""
    parent: IntArray
    """The process that forks a process; -1: the process exists from the start of the job. Shape (processes,)."""
    home: IntArray
    """The node of a process under a static allocation, an index into the nodes of its job. Shape (processes,)."""
    kind: IntArray
    """Kind of each step (`StepKind`), shape (steps,)."""
    argument: IntArray
    """Message or process of each step, shape (steps,)."""
    amount: FloatArray
    """Work of each step, s, 0 for all but `COMPUTE`. Shape (steps,)."""
    sender: IntArray
    """Sending process of each message, shape (messages,)."""
    receiver: IntArray
    """Receiving process of each message, shape (messages,)."""
    size: FloatArray
    """Size of each message, s. Shape (messages,)."""
    communication: Communication

    def __post_init__(self) -> None:
        """Raise ValueError if an array has another type or shape, or a number is out of range: C code relies on it."""
        jobs, processes, steps, messages = (len(array) for array in (self.nodes, self.parent, self.kind, self.sender))
        shapes = {
            "nodes": jobs,
            "processes": jobs + 1,
            "messages": jobs + 1,
            "steps": processes + 1,
            **dict.fromkeys(("parent", "home"), processes),
            **dict.fromkeys(("kind", "argument", "amount"), steps),
            **dict.fromkeys(("sender", "receiver", "size"), messages),
        }
        for name, count in shapes.items():
            array = getattr(self, name)
            expected = np.float64 if name in {"amount", "size"} else np.int64
            if array.shape != (count,) or array.dtype != expected:
                raise ValueError(
                    f"{name} has the shape {array.shape} of {array.dtype}, expected ({count},) of {expected}"
                )
        for name, end in (("processes", processes), ("messages", messages), ("steps", steps)):
            array = getattr(self, name)
            if array[0] != 0 or array[-1] != end or (np.diff(array) < (name == "processes")).any():
                raise ValueError(f"{name} does not ascend from 0 to {end}")
        job = np.repeat(np.arange(jobs), np.diff(self.processes))
        step_job = np.repeat(job, np.diff(self.steps))
        of_message = np.repeat(np.arange(jobs), np.diff(self.messages))
        talks = (self.kind == StepKind.SEND) | (self.kind == StepKind.RECEIVE)
        forks = (self.kind == StepKind.FORK) | (self.kind == StepKind.JOIN)
        for what, numbers, owner, first in (
            ("message", self.argument[talks], step_job[talks], self.messages),
            ("process", self.argument[forks], step_job[forks], self.processes),
            ("sender", self.sender, of_message, self.processes),
            ("receiver", self.receiver, of_message, self.processes),
        ):
            if ((numbers < first[owner]) | (numbers >= first[owner + 1])).any():
                raise ValueError(f"a {what} is of another job")
        if ((self.home < 0) | (self.home >= self.nodes[job])).any():
            raise ValueError("the home of a process is not among the nodes of its job")
        if not (np.isfinite(self.amount).all() and np.isfinite(self.size).all()):
            raise ValueError("a work or a size is not finite")
        if ((self.kind < 0) | (self.kind > max(StepKind))).any():
            raise ValueError("a kind of step is unknown")

    def __len__(self) -> int:
        return len(self.nodes)

    def scaled(self, factors: FloatArray) -> Programs:
        """Return the programs with the works and sizes of each job multiplied by its factor, shape (jobs,)."""
        of_process = np.repeat(factors, np.diff(self.processes))
        return replace(
            self,
            amount=self.amount * np.repeat(of_process, np.diff(self.steps)),
            size=self.size * np.repeat(factors, np.diff(self.messages)),
        )


Round: TypeAlias = tuple[IntArray, IntArray, float]  # senders, receivers, and the size of each message


@dataclass
class Builder:
    """Programs under construction: blocks of steps, each appended to the ends of its processes.

    The blocks in their order are one possible execution. Therefore no program waits forever.
    """

    communication: Communication
    nodes: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    parent: list[IntArray] = field(default_factory=list)
    home: list[IntArray] = field(default_factory=list)
    # Blocks: a kind of step, and the processes that do it.
    steps: list[tuple[StepKind, IntArray]] = field(default_factory=list)
    arguments: list[IntArray] = field(default_factory=list)  # of the blocks that do not compute
    works: list[FloatArray] = field(default_factory=list)  # of the blocks that compute
    sent: list[Round] = field(default_factory=list)
    created: int = 0  # number of processes
    numbered: int = 0  # number of messages

    def begin(self, nodes: int) -> None:
        """Begin the program of the next job, on so many nodes."""
        self.nodes.append(nodes)
        self.processes.append(self.created)
        self.messages.append(self.numbered)

    def create(self, home: Sequence[int] | IntArray) -> IntArray:
        """Add processes that exist from the start, on the nodes `home`, and return their numbers."""
        return self._added(np.full(len(home), -1), home)

    def fork(self, parents: IntArray, home: Sequence[int] | IntArray) -> IntArray:
        """Add the fork of one process by each of `parents`, on a node of `home` if static, and return the numbers."""
        children = self._added(parents, home)
        self._append(parents, StepKind.FORK, children)
        return children

    def join(self, parents: IntArray, children: IntArray) -> None:
        """Add the wait of each of `parents` for the end of one of its children."""
        self._append(parents, StepKind.JOIN, children)

    def compute(self, processes: IntArray, works: FloatArray) -> None:
        """Add a computation of each process, with its work in s."""
        self.steps.append((StepKind.COMPUTE, processes))
        self.works.append(works)

    def exchange(self, *rounds: Round) -> None:
        """Add messages between processes.

        Asynchronous processes send everything before they receive. Synchronous processes send and receive by rounds. A
        process should have one partner in a round, or its synchronous messages are one after another.
        """
        numbers = []
        rounds = tuple(given for given in rounds if len(given[0]))  # a job on one node has many rounds without messages
        for senders, _, _ in rounds:
            numbers.append(np.arange(self.numbered, self.numbered + len(senders)))
            self.numbered += len(senders)
        self.sent += rounds
        pairs = list(zip(rounds, numbers, strict=True))
        for together in [pairs] if self.communication == "asynchronous" else [[pair] for pair in pairs]:
            for (senders, _, _), messages in together:
                self._append(senders, StepKind.SEND, messages)
            for (_, receivers, _), messages in together:
                self._append(receivers, StepKind.RECEIVE, messages)

    def build(self) -> Programs:
        """Return the programs."""
        process = _joined([processes for _, processes in self.steps])
        kinds = np.array([kind for kind, _ in self.steps], dtype=np.int64)
        kind = _repeated(kinds, [processes for _, processes in self.steps])
        argument, amount = np.zeros(len(kind), dtype=np.int64), np.zeros(len(kind))
        argument[kind != StepKind.COMPUTE] = _joined(self.arguments)
        amount[kind == StepKind.COMPUTE] = np.concatenate([np.zeros(0), *self.works])
        order = np.argsort(process, kind="stable")
        sizes = np.array([size for _, _, size in self.sent], dtype=np.float64)
        return Programs(
            nodes=np.array(self.nodes, dtype=np.int64),
            processes=np.array([*self.processes, self.created], dtype=np.int64),
            messages=np.array([*self.messages, self.numbered], dtype=np.int64),
            steps=np.concatenate([[0], np.cumsum(np.bincount(process, minlength=self.created))]).astype(np.int64),
            parent=_joined(self.parent),
            home=_joined(self.home),
            kind=kind[order],
            argument=argument[order],
            amount=amount[order],
            sender=_joined([senders for senders, _, _ in self.sent]),
            receiver=_joined([receivers for _, receivers, _ in self.sent]),
            size=_repeated(sizes, [senders for senders, _, _ in self.sent]),
            communication=self.communication,
        )

    def _added(self, parents: IntArray, home: Sequence[int] | IntArray) -> IntArray:
        numbers = np.arange(self.created, self.created + len(home))
        self.created += len(home)
        self.parent.append(parents)
        self.home.append(np.asarray(home, dtype=np.int64))
        return numbers

    def _append(self, processes: IntArray, kind: StepKind, argument: IntArray) -> None:
        self.steps.append((kind, processes))
        self.arguments.append(argument)


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    """Return the concatenation of arrays, possibly of no arrays."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])


def _repeated(values: Array, blocks: Sequence[IntArray]) -> Array:
    """Return each value as often as its block is long."""
    return np.repeat(values, np.array([len(block) for block in blocks], dtype=np.int64))
