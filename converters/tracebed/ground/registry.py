"""Registries of formats, models, policies, testbeds, metrics and report sections, from entry points.

Each kind of extension has an entry-point group. The extensions of tracebed are listed in its `pyproject.toml`. Another
package adds an extension by one line in its own `pyproject.toml`. An extension is imported when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import extension_error, note, of_extension
from tracebed.ground.version import others_installed, own_entry_points

if TYPE_CHECKING:  # agents use a registry, and must start fast
    import ast
    from importlib.metadata import EntryPoint, EntryPoints

Extension = TypeVar("Extension")


@dataclass(frozen=True)
class Registry(Generic[Extension]):
    """Installed extensions of one kind.

    Args:
        group: the entry-point group (`tracebed.policies`).
        noun: name of the kind, for messages (`policy`).
        kind: class of which each extension is an instance; `Callable` for functions, `type` for classes.
    """

    group: str
    noun: str
    kind: Any = object

    @cached_property
    def entries(self) -> dict[str, EntryPoint]:
        """Name -> entry point, in natural order of names. Extensions of tracebed have precedence over others."""
        entries: dict[str, EntryPoint] = {}
        for entry in _installed()(group=self.group):
            ours = entry.value.startswith("tracebed.")
            if entry.name not in entries or ours:
                entries[entry.name] = entry
        return dict(sorted(entries.items(), key=lambda item: _natural(item[0])))

    def names(self) -> list[str]:
        """Return the names of all installed extensions in natural order."""
        own = own_entry_points().get(self.group)
        if own and "entries" not in vars(self) and not others_installed(self.group):
            return sorted(own, key=_natural)  # `importlib.metadata` would take 10 ms
        return list(self.entries)

    def load(self, name: str) -> Extension:
        """Import and return the extension `name`.

        Raises:
            InputError: the extension is not installed, cannot be imported, or is not of the kind. Where a line of an
                extension of another package failed, the error names the line.
        """
        value = None if "entries" in vars(self) else own_entry_points().get(self.group, {}).get(name)
        # An extension of tracebed has precedence, so the other packages need not be searched for it.
        load = partial(_imported, value) if value else self._entry(name).load
        module = value or self._entry(name).value
        note(f"{self.noun} {name}", module.partition(":")[0])
        try:
            with of_extension(ImportError, AttributeError, SyntaxError):
                extension: Extension = load()
        except (ImportError, AttributeError) as error:
            failure = extension_error(error)
            where = failure.where if failure is not None else module
            raise InputError(f"{self.noun} {name} cannot be loaded: {error}", where=where) from error
        except SyntaxError as error:
            where = f"{error.filename}:{error.lineno}"
            raise InputError(f"{self.noun} {name} is not valid Python: {error.msg}", where=where) from error
        if not isinstance(extension, self.kind):
            given = extension.__name__ if isinstance(extension, type) else type(extension).__name__
            wanted = {Callable: "a function", type: "a class"}.get(self.kind, f"an instance of {self.kind.__name__}")
            what = f"{self.noun} {name} is not {wanted}: {given}"
            raise InputError(what, where=module, hint=f"the entry point names {wanted}")
        return extension

    def is_own(self, name: str) -> bool:
        """Return whether the extension `name` is one of tracebed, whose results need no check."""
        return name in own_entry_points().get(self.group, {})

    def _entry(self, name: str) -> EntryPoint:
        """Return the entry point of an installed extension. Raises InputError if it is not installed."""
        if name not in self.entries:
            raise unknown(self.noun, name, self.names())
        return self.entries[name]

    def summary(self, name: str) -> str:
        """Return the first line of an extension's documentation, or an empty text.

        The line is parsed from the source file, because help texts must not import the extensions.
        """
        entry = self.entries[name]
        try:
            spec = find_spec(entry.module)
            text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
            return _documented(_parsed(text), entry.attr).partition("\n")[0]
        except (ImportError, OSError, SyntaxError, ValueError):
            return ""

    def all(self) -> Iterator[tuple[str, Extension]]:
        """Import and yield every installed extension with its name."""
        for name in self.names():
            yield name, self.load(name)


@cache
def _installed() -> Callable[..., EntryPoints]:
    """Return what selects entry points of all installed packages. The search of 130 packages takes 4 ms."""
    from importlib.metadata import entry_points

    return entry_points().select


def _imported(value: str) -> Any:
    """Import an object of tracebed, `module:object`, as `EntryPoint.load` does."""
    module, _, attribute = value.partition(":")
    return attrgetter(attribute)(import_module(module))


def unknown(noun: str, name: Any, known: list[str]) -> InputError:
    """Return the error for an unknown name, with the most similar known name as a hint."""
    if not known:
        return InputError(f"unknown {noun} {name!r}", hint="none is installed")
    hint = " ".join(filter(None, [proposal(name, known), f"one of {', '.join(known)}"]))
    return InputError(f"unknown {noun} {name!r}", hint=hint)


def proposal(name: Any, known: Iterable[str]) -> str | None:
    """Return the hint that names the most similar of the `known` names; None: none is similar."""
    import difflib

    near = difflib.get_close_matches(str(name), [*known], 1)
    return f"did you mean {near[0]}?" if near else None


def one_of(noun: str, name: Any, known: Iterable[str]) -> None:
    """Raise InputError unless `name` is one of the `known` names. `noun` is what the name denotes, for the message."""
    names = list(known)
    if name not in names:
        raise unknown(noun, name, names)


def _natural(name: str) -> list[tuple[str, int]]:
    """Return a sort key that places `dmr-250` before `dmr-1000`."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]


@cache
def _parsed(text: str) -> ast.Module:
    """Return the syntax tree of a module. A module may have many extensions, and help texts name them all."""
    import ast

    return ast.parse(text)


def _documented(module: ast.Module, name: str) -> str:
    """Return the docstring of a function, class or assigned name."""
    import ast

    for index, node in enumerate(module.body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return ast.get_docstring(node) or ""
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            match module.body[index + 1 : index + 2]:
                case [ast.Expr(ast.Constant(str(text)))]:
                    return text.strip()
    return ""
