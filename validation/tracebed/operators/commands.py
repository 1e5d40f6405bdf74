"""The commands `tracebed whatif` and `tracebed forecast`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import duration_text, load_workload, print_json, print_table
from tracebed.cli.logs import Reading
from tracebed.cli.messages import emit, progress, warn
from tracebed.cli.options import (
    DURATION,
    PATH,
    SIZE,
    Family,
    OutputPath,
    check_alone,
    chosen,
    gathered,
    json_option,
    option,
    outages_option,
    output_option,
    seed_option,
    set_option,
    shared,
)
from tracebed.cli.reports import FIGURES, ReportFile, by_kind, save_figures
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import FORECAST, WHATIF

if TYPE_CHECKING:
    from tracebed.operators.interface import Forecast, WhatIf
    from tracebed.operators.whatif.classes import JobClass


SHOWN = {"partition": 12, "class": 8, "QOS": 8, "account": 9, "size": 20}
"""Classification -> most classes of it in the table. The document and the page have all."""


PERTURBED = {"submit": "submit_s", "limits": "limit_s"}
"""Name in `--perturb` -> its name for the api."""
OUTAGES = ("mean wait (s)", "jobs", "logged", "with outages", "without", "error without", "difference")
"""Columns of the table of the outages."""


OF_LOG = ("log", "files", "real", "format", "time_zone", "machine", "keep")
BESIDE_MALLEABLE = (*OF_LOG, "calibration", "perturb", "output", "replace", "as_json")
"""Parameters of `tracebed whatif` that apply with --malleable."""


@dataclass(frozen=True)
class Changes:
    """The change of a cluster, and what happens to jobs beyond its limits."""

    settings: tuple[str, ...] = shared(
        set_option(
            "Change a setting: bf_max_job_test=1000 (of SchedulerParameters), PriorityWeightAge=5000, "
            "Partition.gpu.MaxTime=1-00:00, Node.n[1-4].Weight=5, QOS.normal.MaxJobsPU=4, Account.phys.GrpTRES=cpu=64"
        )
    )
    add_nodes: tuple[str, ...] = option(
        metavar="PARTITION=N[,like=NODE]",
        help="Add N nodes to a partition, like most of its nodes or like NODE; may be repeated.",
    )
    replacement: Path | None = option("--replace", help="Take this slurm.conf in place of SLURM_CONF.")
    by: Literal["change"] | None = option(
        help="change: answer each change alone, in one table beside one backtest, in place of all together."
    )
    over_limit: Literal["leave-out", "cut", "split"] = option(
        default="leave-out",
        help="Jobs whose time limit exceeds that of the changed cluster: leave them out, cut limit and run time to it, "
        "or split them into chains of jobs.",
    )

    @property
    def keywords(self) -> dict[str, Any]:
        """The options, as `tracebed.api.whatif` takes them. Raises InputError if one is invalid."""
        found = vars(self) | {"add_nodes": _numbers(self.add_nodes)}
        del found["by"]
        return found

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Each change, as `tracebed.api.whatif_each` takes them."""
        replaced = [] if self.replacement is None else [{"replacement": self.replacement}]
        nodes = [{"add_nodes": {name: count}} for name, count in _numbers(self.add_nodes).items()]
        return [*replaced, *({"settings": [setting]} for setting in self.settings), *nodes]


@dataclass(frozen=True)
class MalleableJobs:
    """Which jobs would be malleable, and what resizes cost."""

    malleable: str | None = option(
        metavar="share=S[,policy=P][,...]",
        help="Let a share of the jobs be malleable, resized beside Slurm: share=0.3,policy=dmr,seed=1..6,interval=10,"
        "where=nodes>=4 and partition=batch. Lists are a sweep: share=0..1/0.25,policy=dmr+pref+min.",
    )
    calibration: Path | None = option(
        metavar="FILE",
        help="Calibration with the costs of resizes of --malleable.  [default: those measured on Slurm 22.05.8]",
    )


@dataclass(frozen=True)
class Ensembles:
    """The ensembles of a what-if."""

    outages: Any = shared(outages_option)
    real: Path | None = option(metavar="RUN", help="Real run of the jobs, whose starts are taken, if LOG has none.")
    perturb: tuple[int, dict[str, float]] = option(
        type=Family(click.IntRange(2, 10_000), {"submit": DURATION, "limits": DURATION}),
        default="16",
        metavar="N[,submit=S][,limits=S]",
        help="Members of each ensemble. submit is the largest move of a submission (10 s), limits the largest time to "
        "a multiple of which time limits are rounded up (0 s).",
    )


@click.command()
@click.argument("log", type=PATH, metavar="LOG")
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="SLURM_CONF [FILE]...")
@gathered("changes", Changes)
@gathered("resizes", MalleableJobs)
@gathered("ensembles", Ensembles)
@gathered("reading", Reading, "format", "time_zone", "machine", "keep")
@output_option("Folder of the page, its pictures with their data, and the document.", WHATIF, required=False)
@json_option
def whatif(
    log: Path,
    files: tuple[Path, ...],
    changes: Changes,
    resizes: MalleableJobs,
    ensembles: Ensembles,
    reading: Reading,
    output: Path | None,
    as_json: bool,
) -> None:
    """Predict what a changed SLURM_CONF does to the waits of a LOG, and state how sure the answer is.

    LOG is the accounting of the cluster (sacct -P or --json), or another log with starts. First the backtest: the log
    is predicted under SLURM_CONF, by an ensemble, and compared with what happened. Then the effect: the same ensemble
    under the changed file, member by member. An effect that is not larger than the error of the model on this log, or
    that chance may turn round, is inconclusive. Without a change, the backtest alone is printed. A change that refuses
    more than 1 % of the work of the log (jobs beyond a new limit) has no answer about waits; see --over-limit.

    With --outages, nodes fail or are drained in both clusters as they were in the time of the log, and the backtest is
    printed with and without the outages.

    With --malleable, the answer is what malleability would bring: a share of the jobs is resized while they run, by a
    layer beside Slurm. Sizes and speedups of these jobs are assumed, so the interval covers two speedup models.

    FILE is what Slurm knows besides: the output of `sacctmgr dump CLUSTER`, of `sacctmgr -P show qos` and of `scontrol
    show reservation`. These name accounts and users, so give --keep names, too. A file of the power of the nodes adds
    their energy to the answer of --malleable.

    \b
    Example:
      tracebed whatif sacct.txt slurm.conf --set bf_interval=120 -o whatif
      tracebed whatif sacct.txt slurm.conf --malleable share=0.3 -o answer
    """
    if log.suffix == ".conf":
        raise InputError("is named as the log", where=str(log), hint="the log comes first: whatif LOG slurm.conf")
    if len(files) > 1 and "names" not in reading.keep:
        emit(
            "accounts and users of Slurm's database are matched by name: give --keep names if LOG is an export of sacct"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*which only `--policy slurm -P @slurm.conf` reads")
        jobs = load_workload(log, equal_nodes=False, **reading.keywords)
    jobs = jobs if ensembles.real is None else tb.with_starts(jobs, ensembles.real)
    members, given = ensembles.perturb
    common: dict[str, Any] = {
        "members": members,
        "perturbation": {PERTURBED[name]: most for name, most in given.items()},
        "name": log.name,
    }
    if resizes.malleable is not None:
        check_alone("malleable", BESIDE_MALLEABLE)
        found = _with_malleable(jobs, files, resizes.malleable, resizes.calibration, common)
    elif resizes.calibration is not None:
        raise InputError("--calibration has the costs of the resizes of --malleable", hint="give --malleable, too")
    else:
        found = _with_changes(jobs, files, changes, ensembles, common)
    for text in found.not_modeled:
        warn(f"{files[0]}: {text}")
    for note in found.notes:
        emit(f"{log.name}: {note}")
    if output is not None:
        with progress("drawing the page"):
            page = found.save(output)
        emit(f"page: {page}")
    if as_json:
        document = found.to_json()
        print_json(document.pop("schema"), document)
    else:
        _show(found)


def _with_malleable(
    jobs: tb.Workload, files: tuple[Path, ...], text: str, calibration: Path | None, common: dict[str, Any]
) -> WhatIf:
    """Return the answer about malleable jobs."""
    from tracebed.operators.whatif.malleable import Malleable

    members = common["members"]
    with progress("predicting", total=members + Malleable.parse(text).simulations(members)) as bar:
        found: WhatIf = tb.whatif_malleable(
            jobs, files, text, calibration=calibration, on_progress=bar.update, **common
        )
    return found


def _with_changes(
    jobs: tb.Workload, files: tuple[Path, ...], changes: Changes, ensembles: Ensembles, common: dict[str, Any]
) -> WhatIf:
    """Return the answer about a change, or the backtest."""
    sides = 1 + (len(changes.parts) if changes.by else min(len(changes.parts), 1))
    sides += ensembles.outages is not None
    with progress("predicting", total=sides * common["members"]) as bar:
        how = {"outages": ensembles.outages, "on_progress": bar.update, **common}
        found: WhatIf
        if changes.by:
            found = tb.whatif_each(jobs, files, changes.parts, over_limit=changes.over_limit, **how)
        else:
            found = tb.whatif(jobs, files, **changes.keywords, **how)
    return found


def _numbers(texts: tuple[str, ...]) -> dict[str, int | tuple[int, str]]:
    """Return `--add-nodes PARTITION=N[,like=NODE]` texts as a dictionary."""
    found: dict[str, int | tuple[int, str]] = {}
    for text in texts:
        name, equals, nodes = (part.strip() for part in text.partition("="))
        if not (name and equals):
            raise InputError(f"--add-nodes {text!r} is not PARTITION=N", hint="write --add-nodes cpu=10")
        if name in found:
            raise InputError(f"--add-nodes {name} is given twice", hint="give it once")
        try:
            count, options = Family(SIZE, {"like": click.STRING}).convert(nodes, None, None)
        except click.BadParameter as error:
            raise InputError(f"--add-nodes {text}: {error.message.rstrip('.')}", hint="give a number") from None
        found[name] = (count, options["like"]) if options else count
    return found


def _show(found: WhatIf) -> None:
    """Print the classes, and the answer."""
    click.echo(f"{found.name}: {len(found.jobs):,} judged jobs, {found.span}")
    columns = ["mean wait (s)", "jobs", "logged", "predicted", "error", "moving average"]
    columns += ["changed", "effect", "inconclusive"] if found.change else []
    rows, counts = [], dict(SHOWN)
    for each in found.classes:
        if each.by in counts:
            counts[each.by] -= 1
            if counts[each.by] < 0:
                continue
        row = [each.title, each.jobs, each.logged_s, each.predicted_s, *each.errors]
        if found.change:
            row += [math.nan if each.much else each.changed_s, each.effect_text, each.doubt]
        rows.append(row)
    print_table(columns, rows, spare=["moving average", "jobs"])
    if left_out := sum(-count for count in counts.values() if count < 0):
        emit(f"{left_out:,} more classes: --json or -o FOLDER has all")
    if found.comparison:
        emit(found.comparison)
    if found.malleable is not None:
        click.echo("")
        print_table(*malleable_table(found))
    if found.alternatives:
        click.echo("")
        print_table(*found.of_changes)
    if found.outages:
        click.echo("")
        print_table(OUTAGES, [_of_outages(each) for each in found.outages.classes])
    click.echo("")
    for sentence in found.sentences:
        click.echo(sentence)
    if found.title or found.malleable is not None:
        click.echo(f"backtest: {found.backtest}")


def malleable_table(found: WhatIf) -> tuple[Sequence[str], list[list[str]]]:
    """Return columns and rows of the table of malleable jobs."""
    from tracebed.operators.whatif.resizing import columns_of, rows_of

    assert found.malleable is not None
    return columns_of(found.malleable), rows_of(found.malleable)


def _of_outages(each: JobClass) -> list[Any]:
    """Return the row of a class of jobs in the table of the outages."""
    waits = (each.logged_s, each.changed_s, each.predicted_s)
    return [each.title, each.compared, *waits, each.errors[0], each.effect_text]


@dataclass(frozen=True)
class Forecasting:
    """What a forecast learns from, and how it draws."""

    log: Path | None = option(metavar="LOG", help="Accounting of the cluster, or a workload made of it.  [required]")
    collect: Path | None = option(
        metavar="FOLDER",
        help="Only save the present state to FOLDER, for --judge. A timer repeats the command.",
    )
    judge: Path | None = option(
        metavar="FOLDER",
        help="Compare forecasts and Slurm's estimates for the states in FOLDER with what happened, by LOG.",
    )
    only: tuple[str, ...] = option(
        metavar="KEY=VALUE",
        help="Print only these jobs: job=ID, user=NAME, account=NAME or partition=NAME; several values with commas; "
        "may be repeated.",
    )
    reports: tuple[Path, ...] = option(
        "--report",
        type=OutputPath(ReportFile("html")),
        metavar="FILE|FOLDER",
        help="Write a page (.html) with the next days of the queue: how it drains, reservations, and starts by "
        f"partition; may be repeated: {FIGURES}.",
    )
    would_start: str = option(
        default="",
        metavar="KEY=VALUE,...",
        help="Forecast a job that is not submitted yet: nodes=4,partition=gpu,time=12:00:00. Further keys: cores, "
        "gres, memory, features, user, account, qos.",
    )
    repetitions: int = option(
        type=click.IntRange(2, 10_000),
        default=16,
        metavar="N",
        help="Number of simulations, with drawn run times and later jobs.",
    )
    seed: int = shared(seed_option)


READING = ("format", "time_zone", "keep")
"""The options of a log that `tracebed forecast` has."""
JUDGED = ("partition", "forecasts", "mean wait", "error", "Slurm's error", "bias", "Slurm's bias", "in 80 % interval")
"""Columns of the table of --judge."""


@click.command()
@click.argument("state", type=PATH, required=False)
@gathered("forecasting", Forecasting)
@gathered("reading", Reading, *READING)
@output_option("Table to write, a CSV file.", FORECAST, required=False)
@json_option
def forecast(
    state: Path | None,
    forecasting: Forecasting,
    reading: Reading,
    output: Path | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Forecast when each waiting job of a Slurm cluster starts, with an interval.

    STATE is a folder with the output of Slurm's commands: config.txt, partition.txt, node.txt, job.txt, and if possible
    sprio.txt, sshare.txt, reservation.txt, qos.txt and accounts.txt. Without it, the commands are run now. The log
    teaches how long the jobs of each user run, and which jobs will be submitted. It must have the names of users:
    --keep names, here or when it is cleaned.

    With --would-start, the job is the last of the queue. With user=NAME, it has the priority of a new job of this user.
    cores are those on all nodes (one on each node by default), gres and memory those on each node.

    With --collect and --judge, the forecasts are compared with what happened, beside Slurm's own estimates. The log
    reaches from a month before the first state beyond the last one; each forecast learns only from what was known.

    \b
    Commands of the files:
      scontrol show config > config.txt
      scontrol -a -o show partition > partition.txt
      scontrol -o show node > node.txt
      scontrol -d -o show job > job.txt
      sprio -l > sprio.txt
      sshare -a -l -P > sshare.txt
      scontrol show reservation > reservation.txt
      sacctmgr -P show qos > qos.txt
      sacctmgr -P show assoc format=... > accounts.txt   # fields: docs/how-to/forecast.md

    \b
    Example:
      tracebed forecast state --log accounting/ --keep names
      tracebed forecast --log january.parquet -o starts.csv
      tracebed forecast --log january.parquet --would-start nodes=4,time=12:00:00
    """
    if forecasting.collect is not None:
        check_alone("collect", ())
        emit(f"state: {tb.collect_state(forecasting.collect)}")
        return
    if forecasting.log is None:
        raise InputError("the log is missing", hint="give the accounting of a month or more: --log LOG")
    if forecasting.judge is not None:
        check_alone("judge", ("log", "repetitions", "seed", *READING, "output", "replace", "as_json"))
        judge_states(forecasting.judge, forecasting, reading, output, replace=replace, as_json=as_json)
        return
    wanted = chosen("--only", forecasting.only)
    history = load_workload(forecasting.log, equal_nodes=False, **reading.keywords)
    with progress("simulating", total=forecasting.repetitions) as bar:
        found = tb.forecast(
            state,
            history,
            repetitions=forecasting.repetitions,
            seed=forecasting.seed,
            would_start=forecasting.would_start,
            on_progress=bar.update,
        ).only(wanted)
    for note in found.notes:
        warn(note)
    if output is not None:
        found.to_csv(output, replace=replace)
    if as_json:
        print_json("tracebed-forecast/1", found.to_json())
    else:
        _print(found)
    if output is not None:
        emit(f"forecast: {output}")
    reports = by_kind(forecasting.reports)
    if "html" in reports:
        with progress("drawing the page"):
            page = found.page(reports["html"])
        emit(f"page: {page}")
    if "figures" in reports:
        save_figures(found, reports["figures"])


def judge_states(
    folder: Path, forecasting: Forecasting, reading: Reading, output: Path | None, *, replace: bool, as_json: bool
) -> None:
    """Print how good the forecasts of the states of a folder were, and write a row for each."""
    assert forecasting.log is not None
    history = load_workload(forecasting.log, equal_nodes=False, **reading.keywords)
    with progress("forecasting the states") as bar:
        found = tb.judge_forecasts(
            folder, history, repetitions=forecasting.repetitions, seed=forecasting.seed, on_progress=bar.update
        )
    for note in found.notes:
        warn(note)
    if output is not None:
        found.to_csv(output, replace=replace)
        emit(f"forecasts: {output}")
    if as_json:
        print_json("tracebed-forecast-judgment/1", found.to_json())
        return
    rows = []
    for each in found.figures():
        errors = [_signed(each[name]) for name in ("wait_s", "error_s", "slurm_error_s", "bias_s", "slurm_bias_s")]
        inside = "" if math.isnan(each["inside"]) else f"{each['inside']:.0%}"
        rows.append([each["partition"] or "all", each["forecasts"], *errors, inside])
    print_table(JUDGED, rows)
    unknown = int(found.table["real"].isna().sum())
    emit(f"{counted(found.states, 'state')}; {counted(unknown, 'forecast')} of jobs without a known start, left out")


def _signed(seconds: float) -> str:
    """Return a duration that may be negative; empty: unknown."""
    return "" if math.isnan(seconds) else f"{'-' if seconds < 0 else ''}{duration_text(abs(seconds))}"


def _print(found: Forecast) -> None:
    rows = [found.row(row) for row in found.table.to_dict("records")]
    columns = ["job", "user", "partition", "asked", "start", "80 %: from", "to", "Slurm's estimate", "waits for"]
    columns.append("no forecast")
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(columns, rows, spare=["asked", "user", "waits for"])
    click.echo(found.sentence)
    emit(f"state of {found.instant:%Y-%m-%d %H:%M:%S}, clock of the cluster; {found.members} simulations")
