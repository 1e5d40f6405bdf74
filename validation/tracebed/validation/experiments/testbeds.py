"""The testbeds of an experiment file: nodes, options of the replays, and settings of single testbeds."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from tracebed.ground.yaml_file import FileName
from tracebed.orchestrator.replay.options import Options
from tracebed.validation.experiments.parts import MOST_REPETITIONS, ExperimentPart
from tracebed.validation.setups import OF_REPLAYS, model_of

OF_POLICIES = {"inventory", "balance", "clock", "work_rate", *OF_REPLAYS} - {"speed"}
"""Keys that a batch system does not accept, because it decides itself."""

SettingsSpec = model_of("SettingsSpec", ExperimentPart, OF_REPLAYS)
"""The settings of a replay."""


class TestbedSpec(SettingsSpec):  # type: ignore[misc, valid-type]
    """A testbed: its nodes, or the batch system that decides, with the settings and options of the replays."""

    __test__ = False  # not a test, in spite of its name

    inventory: FileName | dict[str, Any] | None = None
    """Name, file or content of an inventory."""
    balance: str = Options.balance
    clock: str = Options.clock
    work_rate: FileName | None = None
    """File of a calibration with the work rate, relative to the experiment file."""
    beside: str = ""
    """Command that runs beside each repetition."""
    repetitions: Annotated[int, Field(ge=1, le=MOST_REPETITIONS)] | None = None
    """Number of repetitions of each case on this testbed; None: that of the experiment."""
    scheduler: str | None = None
    """Name of a batch system that decides in place of a policy, on its own nodes."""
    partition: str | None = None
    scheduler_options: list[str] = Field(default_factory=list)
    """Additional options of each submission, `KEY=VALUE` or `KEY`."""
    scheduler_conf: FileName | None = None
    """Configuration of the batch system, relative to the experiment file; None: that of the environment."""

    @model_validator(mode="after")
    def _fits_scheduler(self) -> Self:
        if self.scheduler is not None and (wrong := OF_POLICIES & self.model_fields_set):
            raise ValueError(f"`{min(wrong)}` does not apply with `scheduler`: the batch system decides")
        return self
