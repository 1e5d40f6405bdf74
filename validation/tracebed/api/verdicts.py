"""Verdicts: a comparison of the runs of one case, and the validation of the simulators of a suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, overload

import pandas as pd

from tracebed.api.comparisons import Validation
from tracebed.api.progress import reporter
from tracebed.api.results import AnyRun
from tracebed.converters.formats.tools.files import Input
from tracebed.ground.errors import InputError
from tracebed.ground.files import locked_folder
from tracebed.ground.registry import unknown
from tracebed.orchestrator import run as orchestrator
from tracebed.validation.experiments.store import run_folders
from tracebed.validation.metrics import TAU
from tracebed.validation.significance import differences, figures, intervals, read_figures
from tracebed.validation.simulators.reading import import_run, simulator_at
from tracebed.validation.simulators.simulator import ReadOptions, Side
from tracebed.validation.simulators.table import names_of
from tracebed.validation.verdict import validate as validate_cases
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.noise import NoiseProfile
from tracebed.validation.verdict.ranking import PolicyComparison, compare_policies
from tracebed.validation.verdict.tolerances import Tolerances

AnyRuns: TypeAlias = AnyRun | Sequence[AnyRun]
"""A run, a folder of a run or of repetitions, a file of another program, or several of them."""


@overload
def compare(real: Mapping[str, AnyRuns], *, tau: float = 10.0) -> PolicyComparison: ...


@overload
def compare(
    real: AnyRuns,
    predicted: AnyRuns,
    *,
    tolerances: Tolerances | Path | str | None = None,
    margins: Mapping[str, str] | None = None,
    noise: NoiseProfile | Path | str | None = None,
    tau: float = 10.0,
    allow_different_workloads: bool = False,
    columns: Mapping[str, str] | None = None,
    unit: str = "",
    time_zone: str = "",
) -> Validation: ...


def compare(
    real: AnyRuns | Mapping[str, AnyRuns],
    predicted: AnyRuns | None = None,
    *,
    tolerances: Tolerances | Path | str | None = None,
    margins: Mapping[str, str] | None = None,
    noise: NoiseProfile | Path | str | None = None,
    tau: float = 10.0,
    allow_different_workloads: bool = False,
    columns: Mapping[str, str] | None = None,
    unit: str = "",
    time_zone: str = "",
) -> Validation | PolicyComparison:
    """Compare the predictions of a case with its real runs: a verdict on each metric, with margin and reason.

    With `policy -> its real runs` and no prediction, compare each policy with the first one: is mine better on the
    testbed? The k-th repetitions of two policies are a pair.

    Args:
        real: the repetitions of a replay, or a log as a run; runs, their folders, or the folder of a cell with its
            repetitions. A verdict on one case needs five. A file, such as a table of jobs, is imported (`import_run`).
            Or policy -> these; then only `tau` applies besides.
        predicted: the run of a simulator, or several runs of a stochastic one; runs, their folders, or files. For a
            folder of `tracebed simulate --perturb`, the result has `perturbed_differences`.
        tolerances: margins and constants of the decision, or their file; by default those of the metrics.
        margins: metric -> margin that replaces that of the tolerances: `{"wait": "15%"}`.
        noise: noise profile of the testbed, or its file, for a case with few repetitions.
        tau: threshold of the bounded slowdown, s.
        allow_different_workloads: match jobs by id although the workloads differ.
        columns: field -> name of its column in the files, where names are not recognized, as for `import_run`. A file
            without a column of this name has the names that are recognized.
        unit: unit of times in the files whose column names do not state it, as for `import_run`.
        time_zone: time zone of dates without an offset in the files.

    Raises:
        InputError: the sides are swapped, the workloads differ, the runs have no job in common, a margin is invalid, or
            no file has a column that `columns` names.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> real = tb.replay(w, "easy", "emulated-4", speed=1e6)
        >>> str(tb.compare(real=real, predicted=tb.simulate(w, "easy", nodes=4)).verdict)
        'inconclusive'
    """
    if isinstance(real, Mapping):
        others: Mapping[str, Any] = {
            "predicted": predicted,
            "tolerances": tolerances,
            "margins": margins,
            "noise": noise,
            "columns": columns,
        }
        for option, value in others.items():
            if value is not None:
                hint = "leave it out, or give the runs of one policy"
                raise InputError(f"{option} does not apply to real runs of several policies", hint=hint)
        of_policies = {name: _named(runs, "real", ReadOptions()) for name, runs in real.items()}
        return compare_policies({name: [run for _, run in runs] for name, runs in of_policies.items()}, tau)
    if predicted is None:
        hint = "give predicted=, or for a comparison of policies {policy: runs}"
        raise InputError("the prediction is missing", hint=hint)
    chosen = Tolerances.default() if tolerances is None else tolerances
    if isinstance(noise, Path | str):
        noise = NoiseProfile.load(noise)
    reading = ReadOptions(columns=columns or {}, unit=unit, time_zone=time_zone)
    _check_columns([*_each(real), *_each(predicted)], reading.columns)
    observed = _named(real, "real", reading)
    predictions = _named(predicted, "predicted", reading, observed[0][1] if observed else None)
    case = Case.of([run for _, run in observed], [run for _, run in predictions], names=_distinct(observed))
    found = validate_cases(
        [case],
        (chosen if isinstance(chosen, Tolerances) else Tolerances.load(chosen)).replaced(margins or {}),
        profile=noise,
        tau=tau,
        allow_different_workloads=allow_different_workloads,
    )
    perturbed = [read_figures(folder) for folder, _ in predictions if folder is not None and folder.is_dir()]
    known = [each for each in perturbed if each is not None]
    if known and tau == TAU:  # the figures of the runs with perturbed input have this tau
        included = [each.run for each in found.cases[0].repetitions if not each.excluded] or case.real
        together = pd.concat(known, ignore_index=True)
        perturbed_differences = differences(figures(included), together)
        rows = intervals(together).iterrows()
        perturbed_intervals = {str(name): {str(key): float(value) for key, value in row.items()} for name, row in rows}
        found = replace(found, perturbed_differences=perturbed_differences, perturbed_intervals=perturbed_intervals)
    return Validation.of(found)


def validate(
    file: Path | str,
    output: Path | str,
    *,
    simulators: Sequence[str] = (),
    case_pages: bool = True,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Validation]:
    """Validate the simulators of an experiment with real runs: predict, replay, and decide. Resumes when interrupted.

    Args:
        file: the experiment file, with `simulators`, and a testbed or recorded runs.
        output: folder of the runs, the verdicts and the reports.
        simulators: names of the simulators to validate; by default all of the experiment.
        case_pages: whether to write a report for each case.
        on_progress: called periodically with the number of repetitions done in this call.

    Returns:
        simulator -> validation, in the order of the experiment.

    Raises:
        InputError: the experiment is invalid, `output` has replays of another one, or a simulator fails.
        KeyboardInterrupt: a signal ended a replay. The next call continues.

    Example:
        >>> from pathlib import Path
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> _ = tb.write(w, "w.parquet")
        >>> text = "workloads: {w: w.parquet}\\npolicies: [easy]\\nrepetitions: 2\\nsettle_s: 0\\n"
        >>> text += "testbed: {inventory: emulated-4, speed: 1e6}\\nsimulators: {tracebed: {}}\\n"
        >>> _ = Path("suite.yaml").write_text(text)
        >>> list(tb.validate("suite.yaml", "validation"))
        ['tracebed']
    """
    from tracebed.api import experiments

    loaded, folder = experiments.load_experiment(str(file)), Path(output)
    with locked_folder(folder, "experiment"):
        suite = experiments.load_suite(loaded, loaded.selected({}), folder, {}, simulators)
        experiments.clear_results(folder, loaded.experiment.simulators)
        predictions = experiments.run_suite(suite, folder, reporter(f"validating {loaded.name}", None, on_progress))
        found, failed = experiments.validate_suite(suite, predictions, folder)
        experiments.write_results(suite, found, failed, folder, case_pages=case_pages)
    for name, failure in failed.items():
        raise InputError(f"simulator {name} failed: {failure}", where=str(file))
    return {name: Validation.of(validation) for name, validation in found.items()}


def _named(
    runs: AnyRuns, side: Side, reading: ReadOptions, first: orchestrator.Run | None = None
) -> list[tuple[Path | None, orchestrator.Run]]:
    """Return runs with their folders or files; None for a run in memory.

    A file of another program is imported: a prediction as a run of the workload of `first`, a real run as a run of the
    workload of the first real run, or of its own.
    """
    found: list[tuple[Path | None, orchestrator.Run]] = []
    for item in _each(runs):
        if isinstance(item, orchestrator.Run):
            found.append((None, item))
        elif Path(item).is_file() or simulator_at(Path(item)):
            whose = first or (found[0][1] if found else None)
            policy = whose.info.policy if whose else ""
            path, has = Path(item), _column_names(Path(item))
            own = {field: name for field, name in reading.columns.items() if name in has}
            options = replace(reading, side=side, columns=own, name=path.name, policy=policy)
            found.append((path, import_run(path, options, whose)))
        else:
            found += [(folder, orchestrator.Run.load(folder)) for folder in run_folders(Path(item))]
    return found


def _column_names(path: Path) -> list[str]:
    """Return the names of the columns of a table; empty for a folder."""
    return names_of(Input.at(path)) if path.is_file() else []


def _check_columns(runs: Sequence[AnyRun], columns: Mapping[str, str]) -> None:
    """Raise InputError unless each column that `columns` names is in one of the files of `runs`."""
    if not columns:
        return
    paths = [Path(item) for item in runs if not isinstance(item, orchestrator.Run)]
    has = sorted({name for path in paths for name in _column_names(path)})
    if not has:
        raise InputError("columns apply to tables, and no side is a table", hint="leave them out")
    for name in columns.values():
        if name not in has:
            raise unknown("column of the files", name, has)


def _each(runs: AnyRuns) -> list[AnyRun]:
    """Return one or several runs as a list."""
    return [runs] if isinstance(runs, orchestrator.Run | Path | str) else list(runs)


def _distinct(runs: Sequence[tuple[Path | None, orchestrator.Run]]) -> list[str]:
    """Return the names of the folders of runs, or their paths if names repeat; empty with a run in memory."""
    folders = [folder for folder, _ in runs if folder is not None]
    if len(folders) < len(runs):
        return []
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
