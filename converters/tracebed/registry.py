"""Registries: formats, models, policies, testbeds, metrics and report sections by name, from entry points.

Each kind of extension has an entry-point group. What tracebed ships is listed in its own `pyproject.toml`; another
package adds a name with the same one line in its own. Nothing is imported before a name is loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from tracebed.errors import InputError

Extension = TypeVar("Extension")


@dataclass(frozen=True)
class Registry(Generic[Extension]):
    """The installed extensions of one kind.

    Args:
        group: the entry-point group (`tracebed.policies`).
        noun: what one extension is called in messages (`policy`).
    """

    group: str
    noun: str

    @cached_property
    def entries(self) -> dict[str, EntryPoint]:
        """Name -> entry point, sorted by name; tracebed's own win over others of the same name."""
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group):
            ours = entry.value.startswith("tracebed.")
            if entry.name not in found or ours:
                found[entry.name] = entry
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """Return the names of all installed extensions, sorted."""
        return list(self.entries)

    def load(self, name: str) -> Extension:
        """Import and return the extension `name`.

        Raises:
            InputError: no such extension is installed, or its package cannot be imported.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise unknown(self.noun, name, self.names())
        try:
            extension: Extension = entry.load()
        except (ImportError, AttributeError) as error:
            raise InputError(f"{self.noun} {name} cannot be loaded: {error}", where=entry.value) from error
        return extension

    def all(self) -> Iterator[tuple[str, Extension]]:
        """Import and yield every installed extension with its name."""
        for name in self.names():
            yield name, self.load(name)


def unknown(noun: str, name: Any, known: list[str]) -> InputError:
    """Return the error for a name that is not known, with the nearest known one as a hint."""
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return InputError(f"no {noun} {name!r}", hint=f"{hint}one of {', '.join(known) or 'none installed'}")
