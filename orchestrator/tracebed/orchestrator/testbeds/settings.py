"""The settings of a provider: the keys of a group in an inventory that only this provider has."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings without keys, and the base class of settings with keys. A docstring of a key describes it in editors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)
