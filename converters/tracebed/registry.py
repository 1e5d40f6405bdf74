"""Registries: formats, models, policies, testbeds, metrics and report sections by name, from entry points.

Each kind of extension has an entry-point group. What tracebed ships is listed in its own `pyproject.toml`; another
package adds a name with the same one line in its own. Nothing is imported before a name is loaded.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
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
        """Name -> entry point, in the natural order of names; tracebed's own win over others of the same name."""
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group):
            ours = entry.value.startswith("tracebed.")
            if entry.name not in found or ours:
                found[entry.name] = entry
        return dict(sorted(found.items(), key=lambda item: _natural(item[0])))

    def names(self) -> list[str]:
        """Return the names of all installed extensions in their natural order."""
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

    def summary(self, name: str) -> str:
        """Return the first line of the documentation of an extension, or an empty text.

        The line is read from the source: help must not import what each extension needs.
        """
        entry = self.entries[name]
        try:
            spec = find_spec(entry.module)
            text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
            return _documented(ast.parse(text), entry.attr).partition("\n")[0]
        except (ImportError, OSError, SyntaxError, ValueError):
            return ""

    def all(self) -> Iterator[tuple[str, Extension]]:
        """Import and yield every installed extension with its name."""
        for name in self.names():
            yield name, self.load(name)


def unknown(noun: str, name: Any, known: list[str]) -> InputError:
    """Return the error for a name that is not known, with the nearest known one as a hint."""
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return InputError(f"no {noun} {name!r}", hint=f"{hint}one of {', '.join(known) or 'none installed'}")


def _natural(name: str) -> list[tuple[str, int]]:
    """Return a key by which `dmr-250` sorts before `dmr-1000`."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]


def _documented(module: ast.Module, name: str) -> str:
    """Return the docstring of a function or class, or the text below the assignment of a name."""
    for index, node in enumerate(module.body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return ast.get_docstring(node) or ""
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            match module.body[index + 1 : index + 2]:
                case [ast.Expr(ast.Constant(str(text)))]:
                    return text.strip()
    return ""
