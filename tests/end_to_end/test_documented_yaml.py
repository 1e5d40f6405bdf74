"""The YAML blocks of the documentation are YAML; a recipe, claims and plots among them are valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.ground.yaml_file import YamlFile
from tracebed.validation.experiments.experiment_schema import Claim, Plot, SensitivitySpec

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(?P<indent> *)```ya?ml\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Return (page and line, text) of each YAML block."""
    found = []
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]):
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", match["text"]))
    return found


BLOCKS = blocks()


def raw(name: str, key: str) -> Any:
    """Return the first block of a page that has a key."""
    for where, text in BLOCKS:
        parsed = YamlFile.parse(text, where, hint="").raw
        if where.startswith(name) and isinstance(parsed, dict) and key in parsed:
            return parsed
    raise AssertionError(f"{name} has no block with {key}")


@pytest.mark.parametrize(("where", "text"), BLOCKS, ids=[where for where, _ in BLOCKS])
def test_a_block_is_yaml(where: str, text: str) -> None:
    assert isinstance(YamlFile.parse(text, where, hint="").raw, dict | list)


def test_yaml_is_in_fenced_blocks() -> None:
    """YAML in an indented block would escape the test above."""
    assert len(BLOCKS) > 25
    for page in sorted(ROOT.glob("docs/**/*.md")):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        keys = re.findall(r"^    [a-z_]+: *(?:#.*|\{.*|\[.*)?$", prose, re.MULTILINE)
        assert not keys, f"{page.name}: {keys}"


def test_the_recipe_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = next(text for where, text in BLOCKS if where.startswith("docs/how-to/clean.md"))
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    assert (len(recipe.steps), recipe.expect) == (3, {"records": 55600, "jobs": 41524})


@pytest.mark.parametrize("page", ["docs/reference/ledger.md", "docs/reference/experiment.md"])
def test_the_claims_of_the_documentation_are_valid(page: str) -> None:
    assert [Claim(**each) for each in raw(page, "published")["published"]]


def test_the_plots_of_the_documentation_are_valid() -> None:
    views = raw("docs/reference/experiment.md", "plots")
    assert [Plot(**each) for each in views["plots"].values()]
    assert SensitivitySpec(**views["sensitivity"]).choices
