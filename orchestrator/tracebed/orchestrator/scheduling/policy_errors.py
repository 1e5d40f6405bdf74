"""Errors of policies: an impossible decision, or a defect of the code of a policy, with its file and line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from types import CodeType, FrameType
from typing import Any

from tracebed.ground.display import cell
from tracebed.ground.errors import TracebedError
from tracebed.ground.extension_errors import VERBOSE, extension_error, in_words, line_of, place_of
from tracebed.orchestrator.scheduling.state import (
    Cancel,
    Decision,
    Note,
    Policy,
    Reject,
    Reserve,
    Resize,
    Share,
    Start,
    State,
    Wake,
)

DECISIONS = (Start, Resize, Share, Reject, Cancel, Reserve, Wake, Note)
MOST_DECISIONS = 1_000_000
"""Number of decisions in a call, beside ten for each job, after which a policy counts as one that decides for ever."""
DEFECT = "this is a defect of the policy"


class PolicyError(TracebedError):
    """A policy has yielded an impossible decision, or its code has failed."""


class Call:
    """A call of a policy, a context in which its decisions are carried out: errors of the policy get its line.

    Args:
        policy: the policy.
        state: the state that the policy reads.
        jobs: number of jobs.

    Attributes:
        decisions: the decisions. PolicyError is raised if there are more than any policy needs.
    """

    def __init__(self, policy: Policy, state: State, jobs: int) -> None:
        """Prepare the call."""
        self._policy, self._state, self._most = policy, state, MOST_DECISIONS + 10 * jobs
        self._steps: Any = ()

    def __enter__(self) -> Call:
        """Call the policy. Raises PolicyError if `decide` fails, or does not return decisions."""
        try:
            self._steps = self._policy.decide(self._state)
        except (Exception, SystemExit) as error:
            if (found := self._failed(error)) is not None:
                raise found from error
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            what = f"policy {self._name}: decide cannot be called: {in_words(error)}"  # no line of the policy was run
            raise PolicyError(
                what, where=line_of(type(_own(self._policy))), hint="write `def decide(self, state)`"
            ) from error
        if not hasattr(self._steps, "__iter__"):
            if hasattr(self._steps, "close"):
                self._steps.close()  # a coroutine
            code = getattr(_own(self._policy).decide, "__code__", None)
            what = f"policy {self._name}: decide returns {type(self._steps).__name__}, not decisions"
            hint = "`decide` is a generator: it yields each decision, and contains at least one `yield`"
            raise PolicyError(what, where=place_of(code) if isinstance(code, CodeType) else None, hint=hint)
        self.decisions: Iterator[Decision] = chain(islice(self._steps, self._most), self._endless())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Raise an error of the policy as a PolicyError with its line. Others remain as they are."""
        if isinstance(error, PolicyError):
            error.where = f"{line}: {error.where}" if (line := self._line()) else error.where
        elif isinstance(error, Exception | SystemExit) and not isinstance(error, TracebedError):
            if (found := self._failed(error)) is not None:
                raise found from error
            if (line := self._line()) and _is_in_scheduling(error):
                what = f"the decision has invalid values: {in_words(error)}"
                raise PolicyError(what, where=f"{line}: {self._when}", hint=DEFECT) from error

    def unknown(self, decision: Any) -> PolicyError:
        """Return the error of an object that is not a decision."""
        kinds = ", ".join(kind.__name__ for kind in DECISIONS)
        what = f"yields {repr(decision)[:60]}, not a decision"
        return PolicyError(what, where=self._when, hint=f"yield one of {kinds}")

    def _endless(self) -> Iterator[Decision]:
        for decision in self._steps:
            what = f"decides {self._most:,} times in one call, and goes on, with {repr(decision)[:60]}"
            raise PolicyError(what, where=self._when, hint=f"{DEFECT}: its `decide` does not end")
        yield from ()

    @property
    def _name(self) -> str:
        return name_of(self._policy)

    @property
    def _when(self) -> str:
        return f"policy {self._name} at t = {cell(self._state.now)} s"

    def _failed(self, error: BaseException) -> PolicyError | None:
        """Return the error of a policy whose code has raised `error`; None: it has not, or is one of tracebed."""
        if isinstance(error, TracebedError) or (found := extension_error(error)) is None:
            return None
        return PolicyError(f"{self._when} failed: {in_words(error)}", where=found.where, hint=f"{DEFECT}; {VERBOSE}")

    def _line(self) -> str:
        """Return the line at which the policy has yielded its last decision; empty: unknown, or of tracebed."""
        steps = self._steps
        while getattr(inner := getattr(steps, "gi_yieldfrom", None), "gi_frame", None) is not None:
            steps = inner
        frame: FrameType | None = getattr(steps, "gi_frame", None)
        if frame is None or str(frame.f_globals.get("__name__", "")).startswith("tracebed."):
            return ""
        return place_of(frame)


def name_of(policy: Policy) -> str:
    """Return the name of the class of a policy, for messages."""
    return type(_own(policy)).__name__


def _own(policy: Policy) -> Policy:
    """Return the policy, in place of the one by which `check_policy` observes it."""
    own: Policy = getattr(policy, "observed", policy)
    return own


def _is_in_scheduling(error: BaseException) -> bool:
    """Return whether the scheduler, and not its executor, has raised `error`: for a decision with invalid values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__", "")) if trace is not None else ""
    return module.startswith(__name__.rpartition(".")[0])
