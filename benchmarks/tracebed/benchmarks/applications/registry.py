"""Applications by name: the entry points of the group `tracebed.applications`, built-in and third-party."""

from __future__ import annotations

from collections.abc import Mapping

from tracebed.benchmarks.applications.base import Application
from tracebed.ground.errors import InputError
from tracebed.ground.parameters import with_parameters
from tracebed.ground.registry import Registry

APPLICATIONS: Registry[type[Application]] = Registry("tracebed.applications", "application")


def load(name: str, parameters: Mapping[str, str]) -> Application:
    """Return the application `name` with `parameters`.

    Raises:
        InputError: the application or a parameter is unknown, a value is invalid, or the application cannot be
            imported.
    """
    application: Application = with_parameters("application", name, APPLICATIONS.load(name), parameters)
    return application


def parse(text: str) -> dict[str, str]:
    """Return the parameters in the column `application_parameters`: `name=value`, separated by spaces.

    Raises:
        InputError: a word lacks `=`, or a name appears twice.
    """
    found: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not name or name in found:
            hint = "write name=value, each name once, separated by spaces"
            raise InputError(f"application_parameters has {word!r}", hint=hint)
        found[name] = value
    return found
