"""The simulators and the recorded runs of an experiment file, with the rules for their keys and values."""

from __future__ import annotations

import shlex
from fnmatch import fnmatchcase
from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from tracebed.converters.workload import MAX_SIZE
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import FileName
from tracebed.validation.experiments.parts import MOST_REPETITIONS, ExperimentPart, Name
from tracebed.validation.simulators.reading import forms
from tracebed.validation.simulators.simulator import SIMULATORS, TIMEOUT_S, MatchName

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
"""A number of nodes or cores."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=80)]
TRACEBED = "tracebed"
"""Name of the built-in simulator."""
PLACEHOLDERS = ("workload", "policy", "case")
"""Placeholders in patterns of paths: the names of the workload, of the policy, and of the case."""
COMMAND_PLACEHOLDERS = ("workload", "policy", "nodes", "seed", "output")
"""Placeholders in commands. `workload` is the file of the workload there."""


def at_pattern(value: Any) -> Any:
    """Return recorded runs for a pattern of paths, and any other value unchanged."""
    return {"runs": value} if isinstance(value, str) else value


def check_placeholders(text: str, known: tuple[str, ...]) -> str:
    """Return `text`. Raises ValueError if it has a placeholder that is not `known`, or a single brace."""
    try:
        found = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ and }}}} for braces") from error
    for name, spec, conversion in found:
        if name not in known or spec or conversion:
            raise ValueError(f"unknown placeholder {{{name}}}; use {', '.join(f'{{{item}}}' for item in known)}")
    return text


class ReadSpec(ExperimentPart):
    """How the files of another system or simulator are read."""

    importer: str | None = Field(None, alias="from")
    """Name of a simulator or format, as in `tracebed import --from`; None: folders of runs of tracebed."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Field -> name of its column, as in `tracebed import --columns`."""
    unit: str = ""
    time_zone: str = ""
    match: MatchName = "auto"

    @field_validator("importer")
    @classmethod
    def _installed(cls, name: str | None) -> str | None:
        if name is not None and name not in forms():
            raise ValueError(f"unknown importer {name!r}; use one of {', '.join(forms())}")
        return name

    @model_validator(mode="after")
    def _of_importers(self) -> Self:
        if self.importer is None and (given := self.model_fields_set & {"columns", "unit", "time_zone", "match"}):
            raise ValueError(f"`{min(given)}` requires `from`, the name of an importer")
        return self


class RecordedBed(ExperimentPart):
    """The testbed of recorded runs."""

    work_rate: FileName | None = None
    """Calibration with which the runs were replayed, relative to the experiment file: that of `calibration: true`."""


class RecordedSpec(ReadSpec, RecordedBed):
    """Recorded real runs: those of a case match a pattern of paths."""

    runs: FileName
    """Pattern of paths, relative to the experiment file, with the placeholders {workload} and {policy}, or {case}."""
    testbeds: Annotated[dict[Name, RecordedBed], Field(min_length=1)] | None = None
    """Name -> testbed, if the runs are of several."""
    planned: FileName | None = None
    """Pattern of the path of a file, in the same form, whose run times are those that were planned. Without it, the
    run times of a workload without a source are those observed in the first run."""
    nodes: Size | dict[str, Size] | None = None
    """Number of nodes of the machine; or pattern of names of workloads -> number."""
    cores_per_node: Size | None = None

    @field_validator("runs", "planned")
    @classmethod
    def _pattern(cls, text: str | None) -> str | None:
        return text and check_placeholders(text, PLACEHOLDERS)

    @model_validator(mode="after")
    def _of_imported_runs(self) -> Self:
        if self.importer is None and (given := self.model_fields_set & {"planned", "nodes", "cores_per_node"}):
            raise ValueError(f"`{min(given)}` requires `from`: the folder of a run has the nodes and the run times")
        return self

    @model_validator(mode="after")
    def _by_case(self) -> Self:
        if self.testbeds is not None and not self.by_case:
            raise ValueError("`testbeds` requires {case} in the path of the runs")
        if self.testbeds is not None and self.work_rate is not None:
            raise ValueError("`work_rate` is a key of each of the `testbeds`")
        return self

    @property
    def by_case(self) -> bool:
        """Whether the paths differ by case, not only by workload and policy."""
        return "{case}" in self.runs

    def nodes_of(self, workload: str) -> int | None:
        """Return the number of nodes of the machine of a workload, None if it is not given.

        Raises:
            InputError: no pattern matches the name of the workload.
        """
        if not isinstance(self.nodes, dict):
            return self.nodes
        for pattern, number in self.nodes.items():
            if fnmatchcase(workload, pattern):
                return number
        raise InputError(f"no pattern of `nodes` matches {workload}", hint='the pattern "*" matches every name')


def at_range(value: Any) -> Any:
    """Return a range for a list of its ends, a known value as a range of equal ends, and any other value unchanged."""
    if isinstance(value, list) and len(value) == 2:
        return {"low": value[0], "high": value[1]}
    return {"low": value, "high": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class ParameterSpec(ExperimentPart):
    """A parameter of a command: its range, or with equal ends its value."""

    low: Finite
    high: Finite
    scale: Literal["log", "linear"] = "log"
    """Scale of the search: `log` gives each order of magnitude the same share."""
    integer: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"the range is {self.low:g} to {self.high:g}; give the lower end first")
        if self.low <= 0 and self.scale == "log" and not self.known:
            raise ValueError(f"a range from {self.low:g} has no logarithmic scale; write `scale: linear`")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError(f"the ends {self.low:g} and {self.high:g} are not integers")
        return self

    @property
    def known(self) -> bool:
        """Whether the parameter has a value, not a range."""
        return self.low == self.high


class SimulatorSpec(ReadSpec):
    """A simulator: tracebed, one of the registry, a command, or recorded runs."""

    driver: str | None = Field(None, alias="with")
    """Name of a simulator of the registry, or `tracebed`."""
    runs: FileName | None = None
    """Pattern of the paths of recorded predictions, as in `RecordedSpec`."""
    parameters: dict[ParameterName, Annotated[ParameterSpec, BeforeValidator(at_range)]] = Field(default_factory=dict)
    """Further placeholders of the command -> their range, or their value."""
    command: str | None = None
    """Command line with placeholders. Its output is a run, or is read by the importer."""
    calibration: FileName | dict[Name, FileName] | Literal[True] | None = None
    """File of a calibration of the testbed, or name of a testbed -> file, or True for the file `work_rate` of each
    testbed; for tracebed and the simulators of the registry. For a command, the file with the values of its parameters
    that `tracebed validate --fit` wrote."""
    runtime_model: str = "ideal"
    """Run time of jobs that hold fewer cores than requested, for the built-in simulator."""
    policy: str | None = None
    """Policy of the predictions, in place of that of the case: a model of the scheduler of the real runs."""
    policy_parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters of that policy."""
    interval_s: Annotated[float, Field(ge=0, le=bounds.MAX_SECONDS)] | None = None
    """Time between two calls of that policy, trace s; 0: at each event. By default that of the real runs."""
    options: dict[str, str] = Field(default_factory=dict)
    """Options of a simulator of the registry."""
    seeds: Annotated[int, Field(ge=1, le=MOST_REPETITIONS)] = 1
    """Number of runs of a stochastic simulator, with the seeds 0, 1, ...; of the built-in one, of an ensemble."""
    timeout_s: Annotated[float, Field(gt=0, le=bounds.MAX_SECONDS)] = TIMEOUT_S
    """Time after which a simulation is stopped and fails, wall s."""
    version: str = ""
    """Version of the simulator. Another version repeats the predictions."""

    @property
    def kind(self) -> str:
        """Key that determines the kind of the simulator: `tracebed`, `with`, `runs` or `command`."""
        if self.runs is not None:
            return "runs"
        if self.command is not None:
            return "command"
        return TRACEBED if self.driver in (None, TRACEBED) else "with"

    @field_validator("runs")
    @classmethod
    def _pattern(cls, text: str | None) -> str | None:
        return text and check_placeholders(text, PLACEHOLDERS)

    @field_validator("command")
    @classmethod
    def _placeholders(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is not None and "{output}" not in text:
            raise ValueError("the command has no {output}, the path to which the simulator writes")
        try:
            shlex.split(text or "")
        except ValueError as error:
            raise ValueError(f"not a command: {error}") from error
        parameters = tuple(info.data.get("parameters", ()))
        if text is not None and (absent := [name for name in parameters if f"{{{name}}}" not in text]):
            raise ValueError(f"the command has no {{{absent[0]}}}, one of its parameters")
        return text and check_placeholders(text, (*COMMAND_PLACEHOLDERS, *parameters))

    @field_validator("parameters")
    @classmethod
    def _no_placeholder(cls, parameters: dict[str, ParameterSpec]) -> dict[str, ParameterSpec]:
        if taken := parameters.keys() & set(COMMAND_PLACEHOLDERS):
            raise ValueError(f"{{{min(taken)}}} has another meaning in a command; rename the parameter")
        return parameters

    @field_validator("driver")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name not in (None, TRACEBED, *SIMULATORS.names()):
            raise ValueError(f"unknown simulator {name!r}; use one of {', '.join([TRACEBED, *SIMULATORS.names()])}")
        return name

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> Self:
        if sum(value is not None for value in (self.driver, self.runs, self.command)) > 1:
            raise ValueError("a simulator has one of the keys `with`, `runs` and `command`")
        if self.policy is None and (given := {"policy_parameters", "interval_s"} & self.model_fields_set):
            raise ValueError(f"`{min(given)}` requires `policy`")
        reading = {"importer", "columns", "unit", "time_zone", "match"}
        deciding = {"policy", "policy_parameters", "interval_s"}
        allowed = {
            TRACEBED: {"driver", "calibration", "runtime_model", "seeds", *deciding},
            "with": {"driver", "calibration", "options", "seeds", "timeout_s", *deciding},
            "runs": {"runs", *reading},
            "command": {"command", "parameters", "calibration", "seeds", "timeout_s", *reading},
        }[self.kind]
        if wrong := self.model_fields_set - allowed - {"version"}:
            names = {"driver": "with", "importer": "from"}
            own = f"`{self.kind}`" if self.kind != TRACEBED else "the built-in simulator"
            raise ValueError(f"`{names.get(key := min(wrong), key)}` does not apply to a simulator by {own}")
        if self.command is not None and self.calibration is not None:
            if not isinstance(self.calibration, str):
                raise ValueError("the calibration of a command is one file")
            if not self.parameters:
                raise ValueError("`calibration` requires `parameters`, the parameters of the command")
        return self
