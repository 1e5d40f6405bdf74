"""The settings of a provider: the keys of a group in an inventory that only this provider has."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class ProviderSettings(BaseModel):
    """Settings without keys, and the base class of settings with keys. A docstring of a key describes it in editors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    splits_this_machine: ClassVar[bool] = False
    """Whether `cpus: auto` splits the CPUs of this machine into nodes. Otherwise a node has all CPUs of its machine."""
    virtual: ClassVar[bool] = False
    """Whether the nodes exist in a virtual world only, so that a replay on them is not a real run."""
