"""Extensions in a Python file, `FILE.py:NAME`: no package and no installation is needed."""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import in_words, last_line, note
from tracebed.ground.input_files import read_file

PLACE = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)")
DIGITS = 12
"""Hexadecimal digits of the hash in the name of an extension."""


@dataclass(frozen=True)
class ExtensionFile:
    """A Python file, with an absolute path, that has an extension. `noun` is the kind of the extension."""

    noun: str
    path: Path
    name: str

    @classmethod
    def of(cls, noun: str, text: str, folder: Path | None = None) -> ExtensionFile | None:
        """Return the file that `text` names as `FILE.py:NAME`; None: `text` is the name of an installed extension.

        A relative path belongs to `folder`. Raises InputError if `text` is a file without the name of an extension.
        """
        if place := PLACE.fullmatch(text):
            return cls(noun, Path(folder or "", place["path"]).absolute(), place["name"])
        if text.endswith((".py", ".py:")):
            hint = f"write {text.rstrip(':')}:CLASS"
            raise InputError(f"{noun} {text!r} is a file without a class", hint=hint)
        return None

    @property
    def place(self) -> str:
        """The file and the name as `FILE.py:NAME`."""
        return f"{self.path}:{self.name}"

    @property
    def versioned(self) -> str:
        """The name with the hash of the file, `NAME@HASH`: another content is another name. Raises InputError."""
        return f"{self.name}@{hashlib.sha256(self.content).hexdigest()[:DIGITS]}"

    @cached_property
    def content(self) -> bytes:
        """The content of the file. Raises InputError if it cannot be read."""
        return read_file(self.path, f"file of a {self.noun}", hint="give an existing file as FILE.py:CLASS")

    def load(self) -> Any:
        """Import the file, the same content once, and return the extension. Raises InputError if this fails."""
        module = self._module()
        if not hasattr(module, self.name):
            known = [name for name, value in vars(module).items() if _defined(value, module)]
            hint = f"it has {', '.join(known)}" if known else "it has no class"
            raise InputError(f"has no class {self.name}", where=str(self.path), hint=hint)
        return getattr(module, self.name)

    def _module(self) -> ModuleType:
        """Return the module of the file."""
        name = (
            f"{self.path.stem.replace('.', '_')}_{hashlib.sha256(str(self.path).encode() + self.content).hexdigest()}"
        )
        if name in sys.modules:
            return sys.modules[name]
        note(f"{self.noun} {self.name}", name)
        module = ModuleType(name)
        module.__file__ = str(self.path)
        sys.modules[name] = module  # dataclasses look their module up here
        try:
            exec(compile(self.content, str(self.path), "exec", dont_inherit=True), vars(module))
        except SyntaxError as error:
            del sys.modules[name]
            where = f"{error.filename or self.path}:{error.lineno}"
            raise InputError(f"is not valid Python: {error.msg}", where=where, hint="correct the file") from error
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            line = last_line(error.__traceback__, str(self.path))
            where = f"{self.path}:{line}" if line else str(self.path)
            what = f"cannot be imported: {in_words(error)}"
            raise InputError(what, where=where, hint="correct the file, or install what it imports") from error
        return module


def _defined(value: Any, module: ModuleType) -> bool:
    """Return whether `value` is a class that `module` defines."""
    return isinstance(value, type) and value.__module__ == module.__name__
