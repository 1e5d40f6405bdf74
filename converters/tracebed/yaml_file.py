"""YAML files that people write: read, checked by a pydantic model, and every error with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tracebed import yaml_text
from tracebed.errors import InputError

Model = TypeVar("Model", bound=BaseModel)
SAYS = {
    "extra_forbidden": "there is no such key",
    "missing": "must be there",
    "dict_type": "must be keys with values",
    "model_type": "must be keys with values",
}
"""Kind of error -> what is wrong, where pydantic says it in terms of its own."""


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but that 1e9 is a number, as everybody means it and YAML 1.2 says, and not a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@dataclass(frozen=True)
class YamlFile:
    """A YAML file: its content, and the tree that knows the lines."""

    where: str
    text: str
    raw: Any
    tree: yaml.Node | None
    hint: str

    @classmethod
    def read(cls, path: Path, what: str, *, hint: str, unreadable: str) -> YamlFile:
        """Read the file at `path`.

        Args:
            path: where it is.
            what: what it should be, for messages.
            hint: how to correct what is wrong in it.
            unreadable: what to do where it cannot be read.

        Raises:
            InputError: it cannot be read, is no YAML, or has a key twice.
        """
        try:
            text = yaml_text.read(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"cannot read the {what}: {reason}", where=str(path), hint=unreadable) from error
        try:
            raw, tree = yaml.load(text, Loader=_Loader), yaml.compose(text, Loader=_Loader)
        except yaml_text.BROKEN as error:
            raise yaml_text.broken(error, str(path), f"correct it; {hint}") from error
        if key := next(_repeated(tree), None):
            line = key.start_mark.line + 1
            raise InputError(f"{key.value!r} is there twice", where=f"{path}:{line}", hint="only one would count")
        return cls(str(path), text, raw, tree, hint)

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
            message = SAYS.get(first["type"]) or first["msg"].removeprefix("Value error, ")
            raise self.error(f"{field}: {message}" if field else message, *place) from error

    def error(self, what: str, *loc: int | str) -> InputError:
        """Return the error `what` at the line of the node to which `loc` leads."""
        return InputError(what, where=f"{self.where}:{self._line(loc)}", hint=self.hint)

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


def _repeated(tree: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield the keys that stand in one mapping for the second time; an alias's node is looked into once."""
    seen: set[int] = set()
    todo: list[Any] = [tree]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in keys:
                    yield key
                keys.add((key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key))
                todo.append(value)
