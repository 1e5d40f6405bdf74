"""YAML files that people write: read, checked by a pydantic model, and every error with its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tracebed.converters import yaml_text
from tracebed.errors import InputError

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class YamlFile:
    """A YAML file: its content, and the tree that knows the lines."""

    where: str
    text: str
    raw: Any
    tree: yaml.Node | None
    mend: str

    @classmethod
    def read(cls, path: Path, what: str, *, mend: str, unreadable: str) -> YamlFile:
        """Read the file at `path`.

        Args:
            path: where it is.
            what: what it should be, for messages.
            mend: how to mend what is wrong in it.
            unreadable: what to do where it cannot be read, or is no YAML.

        Raises:
            InputError: it cannot be read, or is no YAML.
        """
        try:
            text = yaml_text.read(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"cannot read the {what}: {reason}", where=str(path), mend=unreadable) from error
        try:
            return cls(str(path), text, yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader), mend)
        except yaml_text.BROKEN as error:
            raise yaml_text.broken(error, str(path), unreadable) from error

    def checked(self, model: type[Model]) -> Model:
        """Return the content as `model`. Raises InputError, naming field and line, where it does not fit."""
        try:
            return model.model_validate(self.raw)
        except ValidationError as error:
            errors = error.errors()
            # A misspelt key is the reason of the missing one.
            first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
            place = [part for part in first["loc"] if not str(part).startswith(("constrained", "list[", "function-"))]
            field = ".".join(map(str, place))
            message = first["msg"].removeprefix("Value error, ")
            raise self.error(f"{field}: {message}" if field else message, *place) from error

    def error(self, what: str, *loc: int | str) -> InputError:
        """Return the error `what` at the line of the node to which `loc` leads."""
        return InputError(what, where=f"{self.where}:{self._line(loc)}", mend=self.mend)

    def _line(self, loc: Sequence[int | str]) -> int:
        """Return the line of the innermost YAML node on the way that `loc` describes."""
        node: Any = self.tree
        line: int = node.start_mark.line + 1 if node is not None else 1
        for part in loc:
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if key.value == str(part)]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                found = [(node.value[part], node.value[part])]
            else:
                break
            if not found:
                break
            key, node = found[0]
            line = key.start_mark.line + 1
        return line
