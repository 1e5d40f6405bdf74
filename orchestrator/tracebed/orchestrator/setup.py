"""The setup of a run: how its jobs are scheduled, and how its time is modeled.

A run is a workload on a machine under a setup: `execute(workload, machine, setup)`, whether a simulator, a testbed or
the program of another project executes it. Each setting is a field of `Scheduling` or of `Timing` and nowhere else: the
options of the command line, the keywords of the api, the keys of YAML files and the metadata of runs are made from
these fields, with the check of their types and ranges. What a setting does is code of the executors:
docs/reference/setup.md names the places. Options of a single executor, such as the balance of a replay, are not part of
the setup.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, get_args, get_origin, get_type_hints

from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.extension_files import ExtensionFile
from tracebed.ground.registry import one_of, unknown
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.names import FCFS, FIRST, PRIORITIES, DependencyRule
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel

if TYPE_CHECKING:
    from tracebed.orchestrator.scheduling.state import Policy
    from tracebed.orchestrator.testbeds.calibration import Calibration

AnyPolicy: TypeAlias = "str | type[Policy] | Policy"
"""A policy: the name of an installed one, `FILE.py:CLASS`, a class, or an instance."""
UNKNOWN_POLICY = "not known"
"""Name of the policy of a run whose source does not record the policy."""
SHORTEST_GRAIN_S = 1e-6
"""Shortest grain, wall seconds. A replay cannot have a shorter one either."""


def documented(
    text: str, *, least: float | None = None, most: float | None = None, axis: bool = False
) -> dict[str, Any]:
    """Return the metadata of a setting. A field with such metadata is a setting.

    Args:
        text: its text in `--help` and in the docs.
        least: its smallest value, if it is a number; None: no bound.
        most: its largest value, likewise.
        axis: whether an experiment may have several values of it. The values then are hashable.
    """
    return {"about": text, "least": least, "most": most, "axis": axis}


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """How the jobs of a run are scheduled."""

    policy: str = field(default=UNKNOWN_POLICY, metadata=documented("Scheduling policy, or FILE.py:CLASS."))
    policy_parameters: Mapping[str, Any] = field(
        default_factory=dict, metadata=documented("Parameters of the policy, by name; values may be texts.")
    )
    priority: str = field(
        default=FCFS, metadata=documented("Order in which the policy considers waiting jobs.", axis=True)
    )
    placement: str = field(default=FIRST, metadata=documented("Which of the idle nodes a job gets."))
    grid: str = field(
        default="",
        metadata=documented(
            "Grid of the network between the nodes: 8x16, 4x4x8, torus:8x16.  [default: that of the inventory or of "
            "the workload's system]"
        ),
    )
    interval_s: float = field(
        default=0.0,
        metadata=documented(
            "Scheduling interval in trace seconds. 0 (default) schedules on every event.",
            least=0,
            most=bounds.MAX_SECONDS,
            axis=True,
        ),
    )
    over_limit: OverLimit = field(
        default=OverLimit.EXTEND,
        metadata=documented(
            "Jobs that outlive their time limit: extend the limit to the run time, kill the job, or expect it to take "
            "the limit again, or to end now."
        ),
    )
    dependencies: DependencyRule = field(
        default=DependencyRule.HONOR,
        metadata=documented(
            "Jobs that depend on other jobs or have a think time: honor the dependencies, or ignore them and submit "
            "each job at its own time."
        ),
    )
    instance: Policy | None = field(default=None, compare=False, repr=False)
    """The policy, if it is given as a class or an instance. It is not recorded."""
    file: str = field(default="", compare=False, repr=False)
    """Place of a policy in a file, FILE.py:CLASS. It is not recorded: the policy has the class and the file's hash."""

    def __post_init__(self) -> None:
        """Raise InputError if a name is unknown, or a value has another type or range than the field declares."""
        one_of("priority", self.priority, PRIORITIES)
        _check(self)
        if (file := ExtensionFile.of("policy", self.policy)) is not None:
            object.__setattr__(self, "policy", file.versioned)
            object.__setattr__(self, "file", file.place)
        elif "@" not in self.policy:
            object.__setattr__(self, "file", "")
        if "@" in self.placement:
            name, _, grid = self.placement.partition("@")
            raise InputError(f"placement is {self.placement!r}", hint=f"give placement {name} and grid {grid}")

    @property
    def placed(self) -> str:
        """The placement and the grid in the notation of `placement.chooser`: `hilbert@8x16`."""
        return f"{self.placement}@{self.grid}" if self.grid else self.placement


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How the time of a run is modeled. A replay has only the speed: the rest belongs to predictions."""

    speed: float = field(
        default=1.0,
        metadata=documented("Trace seconds per wall second.", least=bounds.MIN_SPEED, most=bounds.MAX_SPEED),
    )
    runtime_model: RuntimeModel = field(
        default=RuntimeModel.IDEAL,
        metadata=documented("Run-time model for jobs that hold fewer cores than requested.", axis=True),
    )
    malleability_interval_s: float = field(
        default=0.0,
        metadata=documented(
            "Time between malleability points of a job, in trace seconds. 0 (default) resizes jobs at once.",
            least=0,
            most=bounds.MAX_SECONDS,
            axis=True,
        ),
    )
    overheads: Overheads = field(
        default_factory=Overheads,
        metadata=documented("Overheads of the predicted system, wall s, by name; may be repeated."),
    )
    calibration: Calibration | None = field(
        default=None,
        metadata=documented("Calibration of the predicted testbed: all overheads, and the distance of resizes."),
    )
    dispatched: bool | None = field(
        default=None,
        metadata=documented(
            "Whether the overheads of launches and ends are latencies of a batch system, before the start of "
            "a job and after its end.  [default: for a policy that models one, and with a calibration of one]"
        ),
    )

    def __post_init__(self) -> None:
        """Take the overheads of the calibration. Raise InputError for an unknown name, an invalid type or range."""
        if isinstance(self.overheads, Mapping):
            object.__setattr__(self, "overheads", overheads_of(self.overheads))
        _check(self)
        if self.calibration is not None:
            made = calibrated(self.calibration)
            if self.overheads not in (Overheads(), made) or self.malleability_interval_s:
                given = "a malleability interval" if self.malleability_interval_s else "overheads"
                raise InputError(f"both a calibration and {given} are given", hint="give one of them")
            object.__setattr__(self, "overheads", made)
        for name, value in asdict(self.overheads).items():
            bounds.check(f"overhead {name}", value, 0, bounds.MAX_SECONDS / self.speed)
        grain = self.overheads.grain_s
        if grain and self.malleability_interval_s:
            raise InputError("both a grain and a malleability interval are given", hint="give one of them")
        if 0 < grain < SHORTEST_GRAIN_S:
            raise InputError(f"grain_s is {grain:g}", hint=f"use 0, or at least {SHORTEST_GRAIN_S:g} s")


SETUP_PARTS = {
    "scheduling": tuple(each.name for each in fields(Scheduling) if each.metadata),
    "timing": tuple(each.name for each in fields(Timing)),
}
"""Part of a setup -> the names of its settings."""
SETTINGS = {each.name: each for kind in (Scheduling, Timing) for each in fields(kind) if each.metadata}
"""Name of a setting -> its field."""
_OF_FIELDS = get_type_hints(Scheduling, localns={"Policy": object})
_OF_FIELDS |= get_type_hints(Timing, localns={"Calibration": object})
TYPES = {
    name: next(part for part in (get_args(kind) if isinstance(kind, UnionType) else (kind,)) if part is not NoneType)
    for name, kind in _OF_FIELDS.items()
}
"""Name of a setting -> its type. A setting whose default is None may be None, too, as its field declares."""
EXPECTED: dict[Any, str] = {
    bool: "give true or false",
    str: "give a text",
    Mapping: "give names and their values",
    Overheads: "give overheads by name, in wall seconds",
}
"""Type of a setting -> hint of the error for a value of another type."""


def _check(part: Scheduling | Timing) -> None:
    """Raise InputError if a setting has another type than its field declares, or is out of its range.

    A name of an enumeration becomes its member, and a number of NumPy one of Python, which `run.json` can hold.
    """
    for setting in fields(part):
        if setting.metadata:
            object.__setattr__(part, setting.name, _checked(setting, getattr(part, setting.name)))


def _checked(setting: Field[Any], value: Any) -> Any:
    """Return the value of a setting in its type; errors as for `_check`."""
    name, kind, limits = setting.name, TYPES[setting.name], setting.metadata
    if value is None and setting.default is None:
        return None
    if kind in (int, float):
        bounds.check(name, value, limits["least"], limits["most"], whole=kind is int)
        return value if isinstance(value, int | float) else kind(value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        one_of(name, value, kind)
        return kind(value)
    if not isinstance(value, get_origin(kind) or kind):
        raise InputError(f"{name} is {value!r}", hint=EXPECTED.get(get_origin(kind) or kind, ""))
    return value


@dataclass(frozen=True)
class Setup:
    """The setup of a run."""

    scheduling: Scheduling = Scheduling()
    timing: Timing = Timing()

    @classmethod
    def of(cls, policy: AnyPolicy | Setup, /, **settings: Any) -> Setup:
        """Return the setup of a policy with settings by the names of the fields of `Scheduling` and `Timing`.

        Args:
            policy: the name of an installed policy, `FILE.py:CLASS`, a policy class or an instance; or a setup, whose
                settings are replaced.
            settings: the settings. None stands for the default, or for the setting of the setup.

        Raises:
            InputError: a setting is unknown or invalid.
        """
        from tracebed.orchestrator.scheduling.policies import registry

        given = {name: value for name, value in settings.items() if value is not None}
        for name in given:
            if name not in SETTINGS:
                raise unknown_setting(name, [*SETTINGS], policy)
        if isinstance(policy, Setup):
            start = policy
        elif isinstance(policy, str):
            start = cls(Scheduling(policy=policy))
        else:
            name, made = registry.resolve(policy, given.pop("policy_parameters", None))
            start = cls(Scheduling(policy=name, policy_parameters=registry.parameters(made), instance=made))
        parts = {room: {name: given[name] for name in names if name in given} for room, names in SETUP_PARTS.items()}
        return cls(
            replace(start.scheduling, **parts["scheduling"]) if parts["scheduling"] else start.scheduling,
            replace(start.timing, **parts["timing"]) if parts["timing"] else start.timing,
        )

    def policy(self) -> Policy:
        """Return the policy at the speed of the run.

        Raises:
            InputError: the policy or a parameter is unknown, or a parameter is another speed.
        """
        from tracebed.orchestrator.scheduling.policies import registry

        scheduling = self.scheduling
        if scheduling.instance is not None:
            return registry.resolve(scheduling.instance, speed=self.timing.speed)[1]
        named = scheduling.file or scheduling.policy
        name, policy = registry.resolve(named, scheduling.policy_parameters, speed=self.timing.speed)
        if name != scheduling.policy:
            what = f"the file of the policy has changed: {name} in place of {scheduling.policy}"
            raise InputError(what, where=scheduling.file, hint="run the command again")
        return policy

    def complete(self) -> tuple[Setup, Policy]:
        """Return the setup with all parameters of its policy, and the policy at the speed of the run.

        Raises:
            InputError: the policy or a parameter is unknown, or a parameter contradicts another setting.
        """
        from tracebed.orchestrator.scheduling.policies import registry
        from tracebed.orchestrator.scheduling.state import dispatches

        scheduling, timing, policy = self.scheduling, self.timing, self.policy()
        registry.check(policy, scheduling.interval_s, scheduling.over_limit)
        if timing.dispatched is None:
            made = timing.calibration
            timing = replace(timing, dispatched=dispatches(policy) if made is None else bool(made.batch))
        return Setup(replace(scheduling, policy_parameters=registry.parameters(policy)), timing), policy

    def resolved(self, nodes: int) -> tuple[Setup, Policy]:
        """Return the result of `complete` for a machine of `nodes` nodes.

        Raises:
            InputError: as for `complete`, or the placement is unknown, or the grid does not have `nodes` nodes.
        """
        from tracebed.orchestrator.scheduling.placement import chooser

        chooser(self.scheduling.placed, nodes)
        return self.complete()

    def measured(self) -> Setup:
        """Return the setup of a replay. A replay measures the times that a prediction models.

        Raises:
            InputError: a setting of the timing other than the speed is given.
        """
        for name in sorted(self.given.keys() & {*SETUP_PARTS["timing"]} - {"speed", "dispatched"}):
            hint = "give its work rate as work_rate" if name == "calibration" else "leave the setting out"
            raise InputError(f"{name} is a setting of predictions, not of replays", hint=hint)
        return replace(self, timing=Timing(speed=self.timing.speed))

    def on(self, grid: str | None) -> Setup:
        """Return the setup with the grid of a machine, unless the setup has a grid. None or empty: no grid is known."""
        if self.scheduling.grid or not grid:
            return self
        return replace(self, scheduling=replace(self.scheduling, grid=grid))

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return all settings as JSON values. A calibration is its hash."""
        calibration = self.timing.calibration
        own = {"overheads": asdict(self.timing.overheads), "calibration": calibration.sha256 if calibration else None}
        parts = {
            room: {name: getattr(getattr(self, room), name) for name in names} for room, names in SETUP_PARTS.items()
        }
        parts["timing"] |= own
        plain: dict[str, dict[str, Any]] = json.loads(json.dumps(parts, default=str))
        return plain

    @property
    def given(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by name."""
        plain = Setup()
        both = [
            (name, getattr(self, room), getattr(plain, room)) for room, names in SETUP_PARTS.items() for name in names
        ]
        return {name: getattr(own, name) for name, own, usual in both if getattr(own, name) != getattr(usual, name)}

    @property
    def digest(self) -> str:
        """Hash of all settings."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Self:
        """Return the setup in JSON values of `as_dict`, without its calibration. Missing settings have their defaults.

        Raises:
            InputError: a setting is unknown or invalid.
        """
        found = {}
        for room, names in SETUP_PARTS.items():
            values = parts.get(room, {})
            if not isinstance(values, dict):
                raise InputError(f"{room} is not an object")
            for name in values:
                if name not in names:
                    raise unknown("setting", name, [*names])
            found[room] = {name: value for name, value in values.items() if name != "calibration"}
        return cls(Scheduling(**found["scheduling"]), Timing(**found["timing"]))


DEFAULT = Setup()
"""The setup without settings."""


def unknown_setting(name: str, known: list[str], policy: AnyPolicy | Setup) -> InputError:
    """Return the error for an unknown setting. Its hint says where a parameter of the policy belongs."""
    from tracebed.orchestrator.scheduling.policies import registry

    if isinstance(policy, Setup):
        policy = policy.scheduling.instance or policy.scheduling.file or policy.scheduling.policy
    try:
        is_parameter = name in registry.parameter_names(policy)
    except InputError:  # the setting is unknown, whatever the policy is
        is_parameter = False
    if is_parameter:
        hint = f'it is a parameter of the policy: policy_parameters={{"{name}": ...}}'
        return InputError(f"unknown setting {name!r}", hint=hint)
    return unknown("setting", name, known)


def overheads_of(values: Mapping[str, Any]) -> Overheads:
    """Return overheads from their names and values, wall s. Raises InputError if one is unknown or not a number."""
    known = {each.name for each in fields(Overheads)}
    for name, value in values.items():
        if name not in known:
            raise unknown("overhead", name, sorted(known))
        bounds.check(f"overhead {name}", value, 0, bounds.MAX_SECONDS)
    return Overheads(**{name: float(value) for name, value in values.items()})


def calibrated(calibration: Calibration | None) -> Overheads:
    """Return the overheads of a calibration, wall s; all are 0 without one."""
    return Overheads(**calibration.constants) if calibration else Overheads()
