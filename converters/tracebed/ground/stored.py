"""Files that tracebed writes and reads again (calibrations, baselines): a validated model with a schema name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from pydantic import BaseModel, ConfigDict

from tracebed.ground.outputs import OutputKind
from tracebed.ground.yaml_file import YamlFile


class Part(BaseModel):
    """A part of a stored file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StoredFile(Part):
    """A YAML or JSON file with a schema name and version, in the field `file_schema` with the alias `schema`."""

    KIND: ClassVar[str]
    """The kind of file, for messages."""
    HINT: ClassVar[str]
    """The command that writes such files, as a hint in messages."""

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a file. Raises InputError, with file and line, if it cannot be read or its content is invalid."""
        return cls._checked(YamlFile.read(Path(path), cls.KIND, hint=cls.HINT, unreadable=cls.HINT))

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Return the content of a file from its text; `where` names the file in errors, as in `load`."""
        return cls._checked(YamlFile.parse(text, where, hint=cls.HINT))

    @classmethod
    def _checked(cls, file: YamlFile) -> Self:
        expected = str(cls.model_fields["file_schema"].default)
        name = file.raw.get("schema") if isinstance(file.raw, Mapping) else None
        if name != expected:
            stated = f"schema is {name!r}" if name else "schema is missing"
            raise file.error(f"{stated}, not {expected!r}", "schema")
        return file.checked(cls)

    def save(self, path: Path | str, *, replace: bool = False) -> Path:
        """Write the file atomically and return its path: JSON if its name ends in .json, otherwise YAML.

        Raises InputError if the file exists and is not of this kind or not to be replaced, or cannot be written.
        """
        path = Path(path)
        family = str(type(self).model_fields["file_schema"].default).partition("/")[0]
        kind = OutputKind(f"a {self.KIND}", rb"schema\W+" + re.escape(family).encode() + b"/")
        with kind.file(path, replace=replace) as file:
            file.write((self.json_text if path.suffix == ".json" else self.text).encode())
        return path

    @property
    def json_text(self) -> str:
        """The content of the file as JSON, with each record on one line."""
        return compact_json(self.model_dump(mode="json", by_alias=True)) + "\n"

    @property
    def text(self) -> str:
        """The content of the file as YAML."""
        return _yaml(json.dumps(self.model_dump(mode="json", by_alias=True)))

    @property
    def sha256(self) -> str:
        """The SHA-256 of the content, in hexadecimal digits. Comments and layout of the file do not count."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@lru_cache(maxsize=8)  # many predictions and replays name the hash of one calibration
def _yaml(content: str) -> str:
    """Return JSON as YAML."""
    lines = {key: _lines(value) for key, value in json.loads(content).items()}
    return yaml.dump(lines, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def compact_json(value: Any, margin: str = "\n") -> str:
    """Return `value` as JSON. A mapping or a list without a mapping in it is on one line."""
    inner = f"{margin}  "
    if isinstance(value, dict) and _has_mapping(value.values()):
        items = (f"{json.dumps(key, ensure_ascii=False)}: {compact_json(item, inner)}" for key, item in value.items())
        return f"{{{inner}{f',{inner}'.join(items)}{margin}}}"
    if isinstance(value, list) and _has_mapping(value):
        return f"[{inner}{f',{inner}'.join(compact_json(item, inner) for item in value)}{margin}]"
    return json.dumps(value, ensure_ascii=False)


def _has_mapping(items: Iterable[Any]) -> bool:
    return any(item if isinstance(item, dict) else isinstance(item, list) and _has_mapping(item) for item in items)


class _Line(dict[str, Any]):
    """A mapping that is written on one line."""


class _Dumper(yaml.SafeDumper):
    """Dumper that writes lists of scalars and each `_Line` on one line."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        scalars = not any(isinstance(item, dict | list) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=scalars)


_Dumper.add_representer(_Line, lambda dumper, line: dumper.represent_mapping("tag:yaml.org,2002:map", line, True))


def _lines(value: Any) -> Any:
    """Return `value` with each mapping of scalars and lists as a `_Line`."""
    if isinstance(value, list):
        return [_lines(item) for item in value]
    if not isinstance(value, dict):
        return value
    nested = any(isinstance(item, dict) for item in value.values())
    return {key: _lines(item) for key, item in value.items()} if nested else _Line(value)
