"""The shipped papers: the tables, figures and claims of each, the studies that repeat them, and fitted constants."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from tracebed.ground.registry import one_of
from tracebed.ground.yaml_file import YamlFile
from tracebed.validation.experiments.experiment_schema import Claim, ExperimentPart, shorthand
from tracebed.validation.experiments.file import SHIPPED, load_experiment
from tracebed.validation.experiments.file import names as experiments

FOLDER = SHIPPED / "papers"


class Element(ExperimentPart):
    """A table, a figure or a claim in words of a paper."""

    shows: str
    reason: str = ""  # why no study has a claim or a plot of the element


class Constant(ExperimentPart):
    """A constant that the paper does not print, fitted so that figures match."""

    name: str
    value: Any
    why: str


class Paper(ExperimentPart):
    """A paper: what it prints, and what repeats it."""

    title: str
    citation: str
    studies: Annotated[list[str], Field(min_length=1)]
    """Names of the experiments that repeat the paper."""
    elements: Annotated[dict[str, Annotated[Element, BeforeValidator(shorthand("shows"))]], Field(min_length=1)]
    """Printed place -> what it shows."""
    fitted: list[Constant] = Field(default_factory=list)
    claims: dict[str, list[Claim]] = Field(default_factory=dict)
    """Study by real runs -> its claims. Those of simulated cells are in the file of the experiment."""

    def claims_of(self, study: str) -> list[Claim]:
        """Return the claims of a study."""
        if study in self.claims or study not in experiments():
            return self.claims.get(study, [])
        return load_experiment(study).experiment.published

    @property
    def drawn(self) -> dict[str, list[str]]:
        """Element -> plots that repeat it: `kassel-knl, figure-7-B-ticks`."""
        plots_by_element: dict[str, list[str]] = {}
        for study in self.studies:
            plots = load_experiment(study).experiment.plots if study in experiments() else {}
            for name, plot in plots.items():
                if plot.element:
                    plots_by_element.setdefault(plot.element, []).append(f"{study}, {name}")
        return plots_by_element


def names() -> list[str]:
    """Return the names of the shipped papers."""
    return sorted(file.name.removesuffix(".yaml") for file in FOLDER.iterdir() if file.name.endswith(".yaml"))


def load_paper(name: str) -> Paper:
    """Return a shipped paper.

    Raises:
        InputError: there is no paper of that name.
    """
    one_of("paper", name, names())
    return YamlFile.read(FOLDER / f"{name}.yaml", "paper", hint="", unreadable="").checked(Paper)


def paper_of(study: str) -> str:
    """Return the name of the paper that a study repeats; empty if it repeats no shipped paper."""
    return next((name for name in names() if study in load_paper(name).studies), "")
