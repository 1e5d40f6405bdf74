"""Verdicts: comparisons of the runs of one case, their reports, and the noise of repeated real runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import pandas as pd

from tracebed.api.results import AnyRun
from tracebed.converters.formats.tools.files import Input
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import JUNIT, SUMMARY, OutputKind
from tracebed.ground.registry import one_of, unknown
from tracebed.orchestrator import run as orchestrator
from tracebed.validation import verdict
from tracebed.validation.experiments import store
from tracebed.validation.experiments.store import run_folders
from tracebed.validation.latex import PaperTable, write_csv, write_latex
from tracebed.validation.metrics import TAU
from tracebed.validation.significance import differences, figures, intervals, read_figures
from tracebed.validation.simulators.reading import import_run, simulator_at
from tracebed.validation.simulators.simulator import ReadOptions, Side
from tracebed.validation.simulators.table import names_of
from tracebed.validation.verdict import validate as validate_cases
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.noise import NoiseFloor, NoiseProfile, noise_floor
from tracebed.validation.verdict.ranking import PolicyComparison, compare_policies
from tracebed.validation.verdict.tolerances import Tolerances

if TYPE_CHECKING:
    from tracebed.validation.budget import ErrorBudget


OnInconclusiveName: TypeAlias = Literal["fail", "warn", "pass"]


class Validation(verdict.Validation):
    """The verdict on a simulator, over the cases of a suite or for one case.

    `verdict`, `headline` and `metrics` have the result; `cases` has the repetitions, and a typical pair of runs.
    """

    @classmethod
    def of(cls, validation: verdict.Validation) -> Self:
        """Return `validation` as an instance of this class."""
        return cls(**{field.name: getattr(validation, field.name) for field in fields(validation)})

    def to_frame(self) -> pd.DataFrame:
        """Return a row per metric and case.

        Returns:
            index `metric` (its name, which ends in the unit: `_s` for seconds) and `case`; columns `real` (mean over
            the repetitions), `noise` (its coefficient of variation), `predicted`, `error` (relative), `margin` (in the
            unit of the metric), `z` (error in margins), `gate` (whether the verdict depends on the metric), and
            `verdict` (of the metric over all cases).
        """
        columns = ["metric", "case", "real", "noise", "predicted", "error", "margin", "z", "gate", "verdict"]
        rows = [
            (
                item.name,
                case.case,
                case.real_mean,
                case.noise_cv,
                case.predicted,
                case.relative_error,
                case.margin,
                case.z,
                item.gate,
                item.verdict.value,
            )
            for item in self.metrics
            for case in item.cases
        ]
        return pd.DataFrame(rows, columns=columns).set_index(["metric", "case"])

    def breakdown(self) -> pd.DataFrame:
        """Return `Comparison.breakdown` of the pair of the first case."""
        return self.pair.breakdown()

    def divergences(self, count: int = 10, *, tolerance_s: float | None = None) -> pd.DataFrame:
        """Return `Comparison.divergences` of the pair of the first case."""
        return self.pair.divergences(count, tolerance_s=tolerance_s)

    def to_html(self, path: Path | str | None = None, budget: ErrorBudget | None = None, *, outcome: str = "") -> str:
        """Return the report as the text of one HTML document: that of the file, if a `path` is given.

        Args:
            path: the file. The pages of several cases are written to a folder of the same name beside it.
            budget: error budget of the predictions, for a section of its own.
            outcome: the result of a gate, as the title of a file; empty: the verdict.

        Raises:
            InputError: the file cannot be written, or its name does not end in .html.
        """
        from tracebed.validation.report import html as report

        more = {}
        if budget is not None:
            from tracebed.validation.budget.figure import section

            more["budget"] = section(budget)
        if path is None:
            return report.render(self, more)
        return report.write(self, path, more, outcome=outcome).read_text(encoding="utf-8")

    def to_markdown(self, path: Path | str | None = None) -> str:
        """Return a summary in Markdown, as for the page of a CI job, after it was written to `path`, if one is given.

        Raises:
            InputError: the file cannot be written.
        """
        from tracebed.validation.report.markdown import markdown
        from tracebed.validation.verdict.gate import Gate

        return _written(markdown(Gate([self])), path, SUMMARY)

    def to_junit(self, path: Path | str | None = None, *, inconclusive: OnInconclusiveName = "fail") -> str:
        """Return the verdict as JUnit XML, a test case per metric and case, after it was written to `path`, if given.

        Args:
            path: the file.
            inconclusive: `fail`: a gated metric without a decision is a failure; `warn`, `pass`: it is skipped.

        Raises:
            InputError: the file cannot be written, or `inconclusive` is unknown.
        """
        from tracebed.validation.report.ci import junit
        from tracebed.validation.verdict.gate import Gate, OnInconclusive

        one_of("inconclusive", inconclusive, OnInconclusive)
        return _written(junit(Gate([self], OnInconclusive(inconclusive))).decode(), path, JUNIT)


def _written(text: str, path: Path | str | None, kind: OutputKind) -> str:
    """Return `text`, after it was written to `path`, if one is given."""
    if path is not None:
        with kind.file(Path(path)) as stream:
            stream.write(text.encode())
    return text


def noise(runs: AnyRun | Mapping[str, AnyRun] | Sequence[AnyRun], *, tau: float = TAU) -> NoiseFloor:
    """Return the variation of the metrics over repetitions of real runs.

    Args:
        runs: the repetitions of one or several workloads and policies on one testbed; each a run, its folder, or a
            folder of repetitions or of an experiment.
        tau: threshold of the bounded slowdown, s.

    Returns:
        The noise floor: `cells` (mean, standard deviation and coefficient of variation of each metric in each cell),
        `left_out` (unhealthy and repeated runs), and `profile`, which `NoiseProfile.save` writes to a file; None for
        too few repetitions.

    Raises:
        InputError: a run cannot be read or is a prediction, the testbeds differ, or no run is usable.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> runs = [tb.replay(w, "easy", "emulated-4", speed=1e6) for _ in range(2)]
        >>> {item.repetitions for item in tb.noise(runs).cells}
        {2}
    """
    if isinstance(runs, orchestrator.Run | Path | str):
        runs = [runs]
    if not isinstance(runs, Mapping):
        runs = {str(run) if isinstance(run, Path | str) else f"run {n}": run for n, run in enumerate(runs, 1)}
    found: dict[str, orchestrator.Run] = {}
    for name, run in runs.items():
        if isinstance(run, orchestrator.Run):
            found[name] = run
            continue
        for folder in run_folders(Path(run), campaign=True):
            found[name if folder == Path(run) else str(folder)] = orchestrator.Run.load(folder)
    return noise_floor(found, tau)


def gains(
    real: Sequence[Path | str], predicted: Sequence[Path | str] = (), *, tau: float = 10.0
) -> list[PolicyComparison]:
    """Compare the policies of real runs with the first one: the simulated gain, the real gain, and their signs.

    Args:
        real: folders of repetitions, of one policy and workload each, or the output folder of an experiment.
        predicted: folders of predictions, or the output folder of an experiment with one simulator.
        tau: threshold of the bounded slowdown, s.

    Returns:
        A comparison per workload. Its first policy is that of the first folder, or of the experiment file.

    Raises:
        InputError: a folder has no runs or those of several simulators, two folders have runs of one policy and
            workload, or a workload has fewer than two policies.
        TestbedError: no run of a policy can be compared, since all are unhealthy.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> policies = ("easy", "fcfs")
        >>> runs = [tb.replay(w, each, "emulated-4", speed=1e6, output=f"real/{each}") for each in policies]
        >>> tb.gains([f"real/{each}" for each in policies])
        [<PolicyComparison of fcfs with easy on workload>]
    """
    found = _by_policy([cell for path in real for cell in store.real_cells(Path(path))])
    made = _by_policy([cell for path in predicted for cell in store.predicted_cells(Path(path))])
    return [compare_policies(runs, tau, made.get(workload)) for workload, runs in found.items()]


def write_gains(found: Sequence[PolicyComparison], path: Path | str) -> None:
    """Write the tables of comparisons of policies to one LaTeX file, for the package booktabs.

    Args:
        found: the comparisons.
        path: the file (.tex), which is replaced if it is such a table; or a file for all metrics (.csv), beside which
            the table is written.
    """
    tables = [PaperTable(*each.table(), each.caption, 2) for each in found]
    if Path(path).suffix == ".csv":
        frames = [each.to_frame().reset_index().assign(workload=each.workload) for each in found]
        write_csv(pd.concat(frames), Path(path), *tables)
    else:
        write_latex(Path(path), *tables)


def _by_policy(cells: Sequence[tuple[str, list[Path]]]) -> dict[str, dict[str, list[orchestrator.Run]]]:
    """Return hash of a workload -> policy -> its runs; policies of one name are called as their cells."""
    read = [(name, [orchestrator.Run.load(folder) for folder in folders]) for name, folders in cells]
    keys = [(str(runs[0].info.workload.get("sha256")), runs[0].info.policy) for _, runs in read]
    found: dict[str, dict[str, list[orchestrator.Run]]] = {}
    seen: dict[str, str] = {}
    for (name, runs), (workload, policy) in zip(read, keys, strict=True):
        identity = json.dumps([workload, policy, runs[0].info.policy_parameters], sort_keys=True, default=str)
        if identity in seen:
            hint = "name the folders of one testbed"
            raise InputError(f"{seen[identity]} and {name} have the same policy and workload", hint=hint)
        seen[identity] = name
        label = policy if keys.count((workload, policy)) == 1 else name
        found.setdefault(workload, {})[label] = runs
    return found


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
