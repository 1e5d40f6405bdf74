"""Configuration files of schedulers, such as a slurm.conf: the parameters that they give to a policy.

The policy and its configuration have the same name. The package of a scheduler registers the reader of its files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tracebed.ground.registry import Registry
from tracebed.machine.machine import Machine
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.setup import Setup


class Configured(Protocol):
    """The contents of configuration files."""

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters of the policy: name -> value as text."""

    @property
    def differences(self) -> Sequence[str]:
        """Settings that the policy does not model, one sentence for each group of settings."""

    def noted(self, parameters: Mapping[str, str]) -> Sequence[str]:
        """Return `differences`, and settings that contradict these parameters of the policy, a sentence each."""

    @property
    def machine(self) -> Machine | None:
        """The machine; None: the files describe none, or nodes that are all alike."""


class Configuration(Protocol):
    """The configuration files of a scheduler."""

    def read(self, *paths: Path) -> Configured:
        """Read files. Raises InputError if one cannot be read or is not a configuration file."""

    def read_with(self, path: Path) -> Iterator[Path]:
        """Yield the files that are read with a configuration file: itself, and those that it includes."""

    def parameters_of(self, info: RunInfo) -> Mapping[str, str]:
        """Return the parameters of the policy for a run of the scheduler, by the configuration in its run.json."""


CONFIGURATIONS: Registry[Configuration] = Registry("tracebed.configurations", "configuration")


def predicted_setup(info: RunInfo, **settings: Any) -> Setup:
    """Return the setup with which a run is predicted: its own, with `settings` in place of some of its settings.

    For a run of a batch system that decided itself, the parameters of the policy are those of the configuration.
    """
    if info.batch and info.policy in CONFIGURATIONS.names():
        settings = {"policy_parameters": CONFIGURATIONS.load(info.policy).parameters_of(info)} | settings
    return Setup.of(info.setup, **settings)
