"""The YAML loader: numbers and words of YAML 1.2, bounded strings, and errors with their line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import MAX_CHARACTERS, YamlFile


def parsed(text: str) -> Any:
    return YamlFile.parse(text, "x.yaml", hint="").raw


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e5", 1e5),
        ("-1.5E-3", -0.0015),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("+7", 7),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("true", True),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("off", "off"),
        ("18:00", "18:00"),
        ("1_000", "1_000"),
        ("2022-11-06", "2022-11-06"),
        ("1.2.3", "1.2.3"),
        ("'1e5'", "1e5"),
        ("[1, no, {a: 2e1}]", [1, "no", {"a": 20.0}]),
        ("{<<: {a: 1, b: 2}, b: 3}", {"a": 1, "b": 3}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = parsed(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2", "x.yaml:4: key 'c' occurs twice"),
        ("a: [", "x.yaml:1: is not YAML"),
        ("a: 1\n\x00", "is not YAML"),
        ("[" * 5000, "nested too deeply|expected node content"),
        ("9" * 5000, "is not YAML"),
        ("!!python/object:os.system x", "is not YAML"),
        ("#" * (MAX_CHARACTERS + 1), "too long for YAML"),
    ],
)
def test_a_broken_text_is_an_error_with_its_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parsed(text)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    weight: int = 1
    width: int = 1


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int
    inner: dict[str, int] = {}
    parts: dict[str, int | Part] = {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("size: 1\ncolour: red", "x.yaml:2: colour: unknown key"),
        ("sise: 1", r"x.yaml:1: sise: unknown key \(did you mean size\?\)"),
        (
            "size: 1\nparts:\n  a: {wieght: 1}",
            r"x.yaml:3: parts.a.wieght: unknown .*did you mean weight\?\)",
        ),
        ("inner: {}", "x.yaml:1: size: required key is missing"),
        ("size: 1\ninner:\n  a: 1\n  b: x", "x.yaml:4: inner.b: "),
        ("", "x.yaml:1: must be a mapping of keys to values"),
        ("- 1", "x.yaml:1: must be a mapping of keys to values"),
    ],
)
def test_values_that_do_not_fit_the_model_are_named_with_their_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        YamlFile.parse(text, "x.yaml", hint="").checked(Model)


def test_an_unreadable_file_is_an_error_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name, says in (("none.yaml", "No such file"), ("bytes.yaml", "not UTF-8")):
        with pytest.raises(InputError, match=f"cannot read the thing: .*{says}"):
            YamlFile.read(tmp_path / name, "thing", hint="", unreadable="")
