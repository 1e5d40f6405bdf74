"""Building of the board: the data sets are copied, predicted by all entries, and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.ground.version import version
from tracebed.studies.board.board import Board, Facts, Kind, Score, Track
from tracebed.studies.board.controls import controls
from tracebed.studies.board.datasets import dataset, datasets
from tracebed.studies.board.entries import EntryFile
from tracebed.studies.board.fetching import SUITE, fetch_from
from tracebed.studies.board.scoring import ceiling_of, noise_of, scores_of
from tracebed.studies.board.words import program_of
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.predicted.simulators import SuiteSimulator
from tracebed.validation.experiments.predicted.specs import TRACEBED
from tracebed.validation.experiments.predicted.suite import Suite, load_suite
from tracebed.validation.experiments.views.judging import cases_of, predict
from tracebed.validation.verdict import validate
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.validation import Validation

OBSERVED = "observed.yaml"
"""The experiment file of a data set without the planned run times, beside that with them."""


@dataclass(frozen=True)
class Entry:
    """A simulator on the board."""

    kind: Kind
    simulator: SuiteSimulator

    def named(self, score: Score) -> Score:
        """Return a score with the name and the version of the simulator, which a table of its output does not have."""
        if self.kind != "entered" or program_of(score):
            return score
        return score.model_copy(update={"program": self.simulator.name, "version": self.simulator.spec.version})


def build(
    folder: Path,
    sources: Sequence[Path],
    entries: Sequence[EntryFile],
    only: Sequence[str] = (),
    on_dataset: Callable[[str], None] = lambda name: None,
) -> tuple[Board, dict[str, str]]:
    """Return the board of the data sets of which there is a copy, and data set -> why there is none.

    Args:
        folder: folder of the copies and the predictions, which are not made again.
        sources: folders with local copies.
        entries: files of entries: the first one is that of tracebed.
        only: names of the data sets; empty for all.
        on_dataset: called with the name of the data set that is scored now.

    Raises:
        InputError: a name in `only` is unknown, there is no copy of any data set, or an entry is invalid.
    """
    facts, scores, missing = {}, [], {}
    for name in [dataset(each).name for each in only] or datasets():
        if not dataset(name).suite:
            continue
        try:
            file = _copy(name, folder / name, sources)
        except InputError as error:
            missing[name] = f"{error.what} ({error.hint})" if error.hint else error.what
            continue
        on_dataset(name)
        facts[name], found = _score(name, file, entries)
        scores += found
    if not facts:
        what = next(iter(missing.values()), "no data set is chosen")
        raise InputError(f"no data set can be scored: {what}", hint="give a folder with copies: --from FOLDER")
    day = datetime.now(UTC).date().isoformat()
    return Board(date=day, version=version(), datasets=facts, scores=scores), missing


def _copy(name: str, folder: Path, sources: Sequence[Path]) -> Path:
    """Return the experiment file of a data set: that of an earlier copy, or of a new one.

    Raises:
        InputError: no source has the data set.
    """
    file = folder / SUITE
    if file.is_file() and file.read_text(encoding="utf-8") == dataset(name).suite:
        return file
    return fetch_from(name, folder, sources)


def _score(name: str, file: Path, entries: Sequence[EntryFile]) -> tuple[Facts, list[Score]]:
    """Return the facts of a data set, and the scores of all entries."""
    suite = _suite(file)
    own = _entries(name, suite, entries)
    failed: dict[str, str] = {}
    cases: dict[tuple[Track, str], list[Case]] = {}
    for track, variant in _variants(suite):
        chosen = {key: each.simulator for key, each in own.items() if track == "planned" or each.kind != "published"}
        output = file.parent / track
        predictions, without = predict(replace(variant, simulators=chosen), output)
        failed |= without
        cases |= {(track, entry): each for entry, each in cases_of(variant, predictions, output).items()}
    base = next(each for (_, entry), each in cases.items() if own[entry].simulator.spec.kind == TRACEBED)
    made = validate(base, suite.tolerances)
    noise = noise_of(made)
    scores = ceiling_of(name, made.cases, suite.tolerances)
    for (_, entry), each in cases.items():
        try:
            found = scores_of(name, entry, own[entry].kind, each, suite.tolerances, noise)
            scores += [own[entry].named(score) for score in found]
        except InputError as error:
            failed[entry] = error.what
    for control, each in controls(base, made.cases).items():
        scores += scores_of(name, control, "control", each, suite.tolerances, noise)
    return _facts(name, made, failed, noise), scores


def _suite(file: Path) -> Suite:
    """Return the suite of a data set. Its files may be runs: commands get each workload in one format."""
    loaded = load_experiment(str(file))
    suite = load_suite(loaded, loaded.selected({}), file.parent, {})
    cases = {name: replace(case, task=replace(case.task, file=None)) for name, case in suite.cases.items()}
    return replace(suite, cases=cases)


def _variants(suite: Suite) -> Iterator[tuple[Track, Suite]]:
    """Yield a suite, and the same suite with the observed run times if its run times are planned ones."""
    yield "planned", suite
    recorded = suite.file.experiment.recorded
    if recorded is not None and recorded.planned is not None:
        raw = suite.file.source.raw
        file = suite.file.folder / OBSERVED
        without = {key: value for key, value in raw["recorded"].items() if key != "planned"}
        with replacing(file) as stream:
            stream.write(yaml.safe_dump(raw | {"recorded": without}, sort_keys=False).encode())
        yield "observed", _suite(file)


def _entries(name: str, suite: Suite, files: Sequence[EntryFile]) -> dict[str, Entry]:
    """Return the entries on a data set: those of its suite, then those of the files.

    Raises:
        InputError: two entries have the same name, or an entry is invalid.
    """
    found = {
        each: Entry("published" if simulator.spec.kind == "runs" else "simulated", simulator)
        for each, simulator in suite.simulators.items()
    }
    shipped = files[0]
    for file in files:
        for simulator in file.simulators(name):
            if simulator.name in found and file is not shipped:
                what = f"the board has an entry {simulator.name} on {name}"
                raise InputError(what, where=file.source.where, hint="rename yours")
            found.setdefault(simulator.name, Entry("simulated" if file is shipped else "entered", simulator))
    return found


def _facts(name: str, made: Validation, failed: dict[str, str], noise: dict[str, float]) -> Facts:
    chosen = dataset(name)
    runs = {repetition.sha256: repetition.excluded for each in made.cases for repetition in each.repetitions}
    return Facts(
        **chosen.model_dump(include={"title", "institution", "source", "commit", "licence", "citation", "note"}),
        cases=len(made.cases),
        real_runs=len(runs),
        clusters=len({each.member.workload for each in made.cases if not each.calibration}),
        unhealthy=sum(bool(excluded) for excluded in runs.values()),
        noise=noise,
        failed=failed,
    )
