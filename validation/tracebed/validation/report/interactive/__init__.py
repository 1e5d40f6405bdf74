"""Scripts of the pages: interactive charts in place of the static figures, figures to save, tables to sort.

The data of the charts and the scripts are in the page: the jobs of both runs, their bars in the Gantt charts, and the
curves. A page without script, and a printed page, shows the static figures.

A column of integers is stored as the differences between successive values, in zigzag order (0, -1, 1, -2, ...), as
unsigned 32-bit integers: first the low bytes of all differences, then the second bytes, and so on. Most high bytes are
0, so that Deflate (RFC 1951) stores a value in one to three bytes. A column may be relative to an earlier one: ends to
starts, predicted to real times. `columns.js` decodes the columns.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics import busy_cores, origin, total_cores, waiting
from tracebed.validation.metrics.power import has_states
from tracebed.validation.report import scales
from tracebed.validation.report.gantt import blocks, ids_of, sleep_blocks
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.verdict import Comparison
from tracebed.validation.verdict.validation import CaseResult

__all__ = ["POLICY", "Scripts", "scripts"]

MISSING = -(2**31)  # value of a missing time

JOBS = 1_000_000  # number of jobs above which a page has its static figures only: the data of 1,000,000 are 15 MB
BARS = 400_000  # Largest number of bars of a chart. The bars with the smallest areas are omitted.
STEPS = 200_000  # Largest number of steps of a curve. A curve with more steps is averaged over half as many bins.
NAMES = 20_000  # number of nodes above which their names are omitted
PARTS = 1000  # parts of the row of a node in a Gantt chart, in which the edges of bars are given
SIDES = ("real", "predicted")

FOLDER = Path(__file__).parent
SCRIPTS = (
    "columns.js",
    "time.js",
    "state.js",
    "facts.js",
    "panel.js",
    "gantt.js",
    "curves.js",
    "points.js",
    "gestures.js",
    "toolbar.js",
    "main.js",
)
"""Scripts of the charts, in the order of their definitions."""
ALWAYS = ("decode.js", "save.js", "tables.js")  # scripts of every page: to save figures, sort and filter tables
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content security policy of a page: no requests, and no script other than that of `Scripts`."""


class PackedColumn(NamedTuple):
    """A column of 32-bit integers, shape (rows,)."""

    values: npt.NDArray[np.integer]
    base: str = ""  # Earlier column to which the stored values are relative. A missing value of the base counts as 0.
    rows: str = ""  # earlier column with the row of the base for each value; by default, the same row


def pack(facts: Mapping[str, Any], columns: Mapping[str, PackedColumn]) -> str:
    """Return facts and columns as one base64 text."""
    # The decompressed bytes are the length of the facts (4 bytes, little-endian), the facts as JSON, and the columns
    # one after the other. The key `columns` of the facts lists name, length, base and rows of each column.
    index = [[name, len(column.values), column.base, column.rows] for name, column in columns.items()]
    head = json.dumps({**facts, "columns": index}, separators=(",", ":"), sort_keys=True).encode()
    body = [len(head).to_bytes(4, "little"), head]
    for column in columns.values():
        values = column.values.astype(np.int32)
        if column.base:
            base = columns[column.base].values
            base = base[columns[column.rows].values] if column.rows else base
            values = np.where(values == MISSING, MISSING, values - np.where(base == MISSING, 0, base)).astype(np.int32)
        body.append(_encoded(values))
    return base64.b64encode(zlib.compress(b"".join(body))).decode()


def ticks(seconds: FloatArray, tick: float) -> npt.NDArray[np.int32]:
    """Return times (s) as integer multiples of `tick` (s); `MISSING` for a time that is not finite."""
    known = np.isfinite(seconds)
    return np.where(known, np.rint(np.where(known, seconds, 0.0) / tick), MISSING).astype(np.int32)


def _encoded(values: npt.NDArray[np.int32]) -> bytes:
    steps = np.diff(values, prepend=np.int32(0))  # modulo 2^32, as in the decoder
    zigzag = ((steps << 1) ^ (steps >> 31)).astype("<u4")
    return zigzag.view(np.uint8).reshape(-1, 4).T.tobytes()


def chart_data(comparison: Comparison, about: str = "") -> str:
    """Return the data of a comparison, packed. Times are ticks after the first submission of each run."""
    runs = (comparison.real, comparison.predicted)
    time = TimeAxis.of(*runs)
    last = max(time.end, *(_last(run) for run in runs))
    tick = 10.0 ** max(np.ceil(np.log10(last / 2**30)), -3)
    ids = ids_of(*runs)()
    tables = [run.table("jobs").frame().set_index("job_id").reindex(ids) for run in runs]
    kind, user, nodes = (tables[0][name].fillna(tables[1][name]) for name in ("kind", "user", "nodes"))
    wait, response = (
        [comparison.jobs[f"{name}_{side}"].to_numpy(dtype=np.float64) for side in SIDES]
        for name in ("wait", "response")
    )
    window = comparison.real_metrics["utilization_window"]
    agreement = comparison.differences["wait"]
    facts: dict[str, Any] = {
        "about": about,
        "tick": tick,
        "home": time.end,
        "last": last,
        "missing": MISSING,
        "ids": ids.tolist(),
        "nodes": _names(runs),
        "linear": scales.threshold(wait[1] - wait[0]),
        "decades": {"wait": scales.decades(*wait), "response": scales.decades(*response)},
        "agreement": [agreement.bias, *agreement.limits] if agreement else None,
        "arrivals": window["end_s"] if window["name"] == "arrivals" else None,
        "omitted": [0, 0],
        "parts": PARTS,
    }
    columns = {"nodes_requested": PackedColumn(nodes.to_numpy(dtype=np.int64))}
    words = {"kind": kind, "user": user, "real": tables[0]["state"], "predicted": tables[1]["state"]}
    for name, values in words.items():
        codes, names = pd.factorize(values.fillna(""))
        facts[f"{name}_names"], columns[name] = names.tolist(), PackedColumn(codes)
    for place, (side, run, table) in enumerate(zip(SIDES, runs, tables, strict=True)):
        for name, before in (("submit", ""), ("start", "submit_real"), ("end", "start_real")):
            base = f"{name}_real" if side == "predicted" else before
            columns[f"{name}_{side}"] = PackedColumn(
                ticks(table[name].to_numpy(dtype=np.float64) - origin(run), tick), base
            )
        bars, facts["omitted"][place] = _bars(run, ids)
        for name, base in (("job", ""), ("low", ""), ("high", f"bar_low_{side}")):
            columns[f"bar_{name}_{side}"] = PackedColumn(bars[name].to_numpy(dtype=np.int64), base)
        for name in ("upper", "lower"):
            columns[f"bar_{name}_{side}"] = PackedColumn(np.rint(bars[name] * PARTS).astype(np.int64))
        for name in ("start", "end"):
            times = ticks(bars[name].to_numpy(dtype=np.float64), tick)
            columns[f"bar_{name}_{side}"] = PackedColumn(times, f"{name}_{side}", f"bar_job_{side}")
        if has_states(run):
            sleep = sleep_blocks(run, last)
            for name in ("state", "low", "high"):
                columns[f"sleep_{name}_{side}"] = PackedColumn(sleep[name].to_numpy(dtype=np.int64))
            for name in ("start", "end"):
                columns[f"sleep_{name}_{side}"] = PackedColumn(ticks(sleep[name].to_numpy(dtype=np.float64), tick))
        facts[f"cores_{side}"] = total_cores(run)
        for name, steps in (("busy", busy_cores(run)), ("queue", waiting(run))):
            instants, amounts = _thinned(steps)
            columns[f"{name}_time_{side}"] = PackedColumn(ticks(instants, tick))
            columns[f"{name}_{side}"] = PackedColumn(np.rint(amounts).astype(np.int64))
    return pack(facts, columns)


def _bars(run: Run, ids: pd.Index[Any]) -> tuple[pd.DataFrame, int]:
    """Return the largest `BARS` bars of a run in the order of their starts, and the number of omitted bars."""
    bars = blocks(run, ids)
    omitted = max(len(bars) - BARS, 0)
    if omitted:
        area = ((bars["end"] - bars["start"]) * (bars["high"] - bars["low"] + 1)).to_numpy()
        bars = bars.iloc[np.sort(np.argsort(area, kind="stable")[omitted:])]
    return bars.sort_values(["start", "job", "low"], ignore_index=True), omitted


def _thinned(steps: Steps) -> tuple[FloatArray, FloatArray]:
    if len(steps.times) <= STEPS:
        return steps.times, steps.values
    edges = np.linspace(steps.times[0], steps.times[-1], STEPS // 2 + 1)
    return edges, np.append(steps.means(edges), 0.0)


def _names(runs: tuple[Run, Run]) -> list[str] | int:
    """Return the names of the nodes of the larger run, or their number if there are many."""
    largest = max(runs, key=lambda run: run.total_nodes)
    return largest.total_nodes if largest.total_nodes > NAMES else [node.name for node in largest.info.nodes]


def _last(run: Run) -> float:
    times = [run.table("jobs")[name] for name in ("submit", "start", "end")] + [run.table("allocations")["end"]]
    return max(float(each[np.isfinite(each)].max(initial=origin(run))) for each in times) - origin(run)


@dataclass(frozen=True)
class Scripts:
    """The script of a page, with the data of its charts."""

    script: Markup
    style: str = ""
    data: str = ""  # content of the data block of the charts: base64; empty without charts

    @property
    def policy(self) -> str:
        """Content security policy that allows exactly this script."""
        digest = base64.b64encode(hashlib.sha256(self.script.encode()).digest()).decode()
        return f"{POLICY}; script-src 'sha256-{digest}'"


def scripts(charts_of: CaseResult | None = None) -> Scripts:
    """Return the scripts of a page; with the interactive charts of a case, of its typical pair of runs, if given."""
    if charts_of is None or charts_of.pair.matching.matched > JOBS:
        return Scripts(_script(charts=False))
    style = Markup(_read("uplot/uPlot.min.css"))
    return Scripts(_script(charts=True), style, chart_data(charts_of.pair, _about(charts_of)))


def _about(result: CaseResult) -> str:
    """Return which repetition the charts show, or an empty text for a single repetition."""
    if len(result.repetitions) == 1:
        return ""
    name = next(one.name for one in result.repetitions if one.run is result.pair.real)
    return f"real: {name}, one of {len(result.repetitions)} repetitions"


@cache
def _script(*, charts: bool) -> Markup:
    """Return the scripts of tracebed as one function without globals, with the library of charts and its license."""
    text = "\n".join(map(_read, ALWAYS))
    if not charts:
        return Markup(f'(() => {{\n"use strict";\n{text}}})();')
    license, library = _read("uplot/LICENSE"), _read("uplot/uPlot.iife.min.js")
    ours = "\n".join(map(_read, SCRIPTS))
    return Markup(f'/*! uPlot\n{license}*/\n(() => {{\n"use strict";\n{library}\n{text}\n{ours}}})();')


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
