"""YAML files of users (inventories, recipes, studies): bounded in size, validated, errors with file and line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from reprlib import Repr
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import yaml
from pydantic import BaseModel, Field, RootModel, ValidationError

from tracebed.ground.errors import InputError
from tracebed.ground.input_files import read_text
from tracebed.ground.registry import proposal

Model = TypeVar("Model", bound=BaseModel)
FileName = Annotated[str, Field(min_length=1)]
"""The name of a file in a model. The empty name would be that of a folder, or no file without a word."""
MAX_CHARACTERS = 2**22
"""Longest accepted text. A log given by mistake must not fill the memory."""
MAX_VALUES = 1_000_000
"""Largest accepted number of keys and values, each alias counted as what it stands for: nested aliases grow
exponentially in everything that walks over the values."""
MESSAGES = {
    "unknown key": ("extra_forbidden", "unexpected_keyword_argument"),
    "required key is missing": ("missing",),
    "must be a mapping of keys to values": ("dict_type", "model_type", "dataclass_type"),
    "must be a list": ("list_type", "tuple_type"),
    "must be text": ("string_type",),
    "must be true or false": ("bool_type", "bool_parsing"),
    "must be a whole number": ("int_type", "int_from_float", "int_parsing"),
    "must be a number": ("float_type", "float_parsing"),
    "must be a finite number": ("finite_number",),
    "must be {expected}": ("literal_error",),
    "must be more than {gt}": ("greater_than",),
    "must be at least {ge}": ("greater_than_equal",),
    "must be less than {lt}": ("less_than",),
    "must be at most {le}": ("less_than_equal",),
    "must not be empty": ("too_short", "string_too_short"),
    "must have at most {max_length} characters": ("string_too_long",),
    "must match {pattern}": ("string_pattern_mismatch",),
}
SAYS = {kind: message for message, kinds in MESSAGES.items() for kind in kinds}
"""Kind of error -> message, where the message of pydantic uses terms of Python."""

_SHORT = Repr()
_SHORT.maxlevel = 2  # nested aliases expand exponentially


def abbreviated(value: object) -> str:
    """Return a value as text for a message, bounded in length."""
    return _SHORT.repr(value)


_Fastest: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, unless PyYAML lacks it


class _Loader(_Fastest):  # type: ignore[valid-type,misc]
    """Loader for the core schema of YAML 1.2: 1e5 is a number; 18:00, 1_000, 2022-11-06, yes and no are strings."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's name


for tag, pattern, first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(first))


def _whole(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
for tag in ("!vault", "!unsafe"):  # tags of Ansible: encrypted text, and text that is no template
    _Loader.add_constructor(tag, _text)


class Invalid(NamedTuple):
    """The first value that does not fit a model.

    Attributes:
        path: keys and indices that lead to the value.
        what: the defect, with the path.
        kind: the kind of the error, a term of pydantic.
    """

    path: list[int | str]
    what: str
    kind: str


def invalid(error: ValidationError, raw: Any) -> Invalid:
    """Return the error to report for `raw`. A misspelled key is also a missing key: the misspelled one is reported."""
    errors = error.errors()
    first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    path = _path(first["loc"], raw, missing=first["type"] == "missing")
    # A value of several possible types has an error for each of them.
    alike = [entry for entry in errors if _path(entry["loc"], raw) == path] if path else []
    says = dict.fromkeys(SAYS.get(entry["type"], "{msg}").format(**_context(entry)) for entry in alike or [first])
    what = " or ".join(says).replace(" or must be ", " or ")
    field = ".".join(map(str, path))[:100]
    return Invalid(path, f"{field}: {what}" if field else what, first["type"])


def _known_keys(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the keys of the models beside the last key of `path`, sorted."""
    models = {*_models(model)}
    for part in path[:-1]:  # a part that is no field is an index or a name in a container of models
        inner = [one.model_fields[part].annotation for one in models if part in one.model_fields]
        models = {each for annotation in inner for each in _models(annotation)} if inner else models
    return sorted({field.alias or name for one in models for name, field in one.model_fields.items()})


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in the type `annotation`: of a root model those in its root."""
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _models(annotation.model_fields["root"].annotation)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _context(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds and the message of an error."""
    bounds = {name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in error.get("ctx", {}).items()}
    return bounds | {"msg": error["msg"].removeprefix("Value error, ")}


def _path(loc: Sequence[int | str], raw: Any, *, missing: bool = False) -> list[int | str]:
    """Return the parts of `loc` that lead into `raw`: without the names of types, but with a missing key."""
    path: list[int | str] = []
    for part in loc:
        inside = isinstance(raw, dict) or (isinstance(raw, list) and isinstance(part, int) and part < len(raw))
        if inside and (not isinstance(raw, dict) or part in raw):
            raw = raw[part]
            path.append(part)
    return [*path, loc[-1]] if missing else path


@dataclass(frozen=True)
class YamlFile:
    """A YAML file: its text, its content, and the node tree, which has the line numbers."""

    where: str
    text: str
    raw: Any
    tree: yaml.Node | None
    hint: str

    @classmethod
    def read(cls, file: Traversable, what: str, *, hint: str, unreadable: str) -> YamlFile:
        """Read a file. Raises InputError, with the hint `unreadable` if it cannot be read, otherwise as `parse`."""
        return cls.parse(read_text(file, what, hint=unreadable), str(file), hint=hint)

    @classmethod
    def parse(cls, text: str, where: str, *, hint: str) -> YamlFile:
        """Parse `text`. Raises InputError if the text is too long, is not YAML, or repeats a key."""
        if len(text) > MAX_CHARACTERS:
            raise InputError("is too long for YAML", where=where, hint="check the path")
        try:
            loader = _Loader(text)
            tree = loader.get_single_node()
            if key := next(_repeated(tree), None):
                line = key.start_mark.line + 1
                raise InputError(f"key {key.value!r} occurs twice", where=f"{where}:{line}", hint="remove one of them")
            if tree is not None and _expanded(tree) > MAX_VALUES:
                what = f"its aliases expand to more than {MAX_VALUES:,} values, or to themselves"
                raise InputError(what, where=where, hint="write the values out")
            raw = loader.construct_document(tree) if tree is not None else None
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a number of 5,000 digits
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None)
            deep = isinstance(error, RecursionError) or problem == "exceeded maximum nesting depth"
            reason = "nested too deeply" if deep else problem or " ".join(str(error).split())
            line = min(mark.line, text.count("\n")) + 1 if mark else None  # libyaml counts a line after the last
            what = f"is not YAML: {reason}"
            raise InputError(what, where=f"{where}:{line}" if line else where, hint=hint) from error
        return cls(where, text, raw, tree, hint)

    def checked(self, model: type[Model]) -> Model:
        """Return the content as `model`. Raises InputError with field and line if the content is invalid."""
        try:
            return model.model_validate(self.raw)
        except ValidationError as error:
            first = invalid(error, self.raw)
            is_key = first.what.endswith("unknown key")
            hint = proposal(first.path[-1], _known_keys(model, first.path)) if is_key else None
            raise self.error(first.what, *first.path, hint=hint) from error

    def part(self, *loc: int | str, hint: str | None = None) -> YamlFile:
        """Return the value at path `loc` as a file of its own, whose errors have the lines of this file."""
        raw, tree = self.raw, self.tree
        for part in loc:
            raw = raw[part]
            assert isinstance(tree, yaml.MappingNode | yaml.SequenceNode)
            if isinstance(tree, yaml.MappingNode):
                tree = next(value for key, value in tree.value if key.value == str(part))
            else:
                tree = tree.value[int(part)]
        return YamlFile(self.where, self.text, raw, tree, hint or self.hint)

    def error(self, what: str, *loc: int | str, hint: str | None = None) -> InputError:
        """Return the error `what` at the line of the node at path `loc`. Without a `hint`, it has that of the file."""
        where = self.where if self.tree is None and loc else f"{self.where}:{self._line(loc)}"
        return InputError(what, where=where, hint=self.hint if hint is None else hint)

    def _line(self, loc: Sequence[int | str]) -> int:
        """Return the line of the innermost YAML node on the path `loc`."""
        node: Any = self.tree
        line: int = node.start_mark.line + 1 if node is not None else 1
        for part in loc:
            if isinstance(node, yaml.MappingNode):
                entries = [(key, value) for key, value in node.value if key.value == str(part)]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                entries = [(node.value[part], node.value[part])]
            else:
                break
            if not entries:
                break
            key, node = entries[0]
            line = key.start_mark.line + 1
        return line


def _repeated(tree: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield the repeated keys of each mapping. An aliased node is visited once."""
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


def _expanded(tree: yaml.Node) -> float:
    """Return the number of nodes of a tree, each alias counted as a copy of its node; infinite if one holds itself."""
    known: dict[int, float] = {}
    todo: list[tuple[yaml.Node, bool]] = [(tree, False)]
    while todo:
        node, done = todo.pop()
        inner = _inner(node)
        if done:
            known[id(node)] = 1 + sum(known[id(part)] for part in inner)
        elif id(node) not in known:
            known[id(node)] = math.inf  # what a node counts within itself
            todo.append((node, True))
            todo += [(part, False) for part in inner if id(part) not in known]
    return known[id(tree)]


def _inner(node: yaml.Node) -> list[yaml.Node]:
    """Return the nodes directly in a sequence or mapping."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []
