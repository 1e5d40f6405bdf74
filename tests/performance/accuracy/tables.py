"""The tables of docs/accuracy.md, from the file verdict.json of a validation, in Markdown.

python tables.py FOLDER/verdict.json [SIMULATOR]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

METRICS = ("makespan_s", "mean_wait_s", "mean_response_s", "mean_bounded_slowdown", "utilization")
NAMES = ("makespan", "wait", "response", "bounded slowdown", "utilization")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def percent(value: float | None, form: str = "+.2f") -> str:
    """Return a share as text in percent."""
    return "-" if value is None or value != value else f"{100 * value:{form}} %"


def by_metric(verdict: dict[str, Any]) -> str:
    """Return a row per gated metric: error with its interval, margin, and verdict."""
    rows = []
    for metric in verdict["metrics"]:
        if metric["gate"]:
            ends = [percent(metric[f"relative_{end}"]) for end in ("low", "high")]
            error = f"{percent(metric['relative_error'])} ({ends[0]} to {ends[1]})"
            worst = max(metric["cases"], key=lambda case: abs(case["relative_error"] or 0))
            largest = f"{percent(worst['relative_error'])} ({worst['case']})"
            margin = percent(metric["delta"], ".0f")
            rows.append([metric["label"], error, largest, margin, percent(metric["delta_needed"], ".2f")])
            rows[-1].append(metric["verdict"])
    head = ["metric", "error (97.5 % interval on each side)", "largest of a case", "margin", "margin needed", "verdict"]
    return table(head, rows)


def by_case(verdict: dict[str, Any]) -> str:
    """Return a row per case: repetitions, and of each metric the coefficient of variation and the error."""
    metrics = {metric["name"]: {case["case"]: case for case in metric["cases"]} for metric in verdict["metrics"]}
    rows = []
    for case in verdict["cases"]:
        own = [metrics[name][case["name"]] for name in METRICS]
        used = sum(not repetition["excluded"] for repetition in case["repetitions"])
        cells = [f"{percent(item['noise_cv'], '.2f')}, {percent(item['relative_error'])}" for item in own]
        ratio = (case["per_job"] or {}).get("noise_ratio")
        noise = "-" if ratio is None or ratio != ratio else f"{ratio:.2f}"
        rows.append([case["name"], f"{used} of {len(case['repetitions'])}", *cells, noise])
    return table(["case", "used", *(f"{name}: CV, error" for name in NAMES), "noise ratio"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the tables of docs/accuracy.md in Markdown.")
    parser.add_argument("file", type=Path)
    parser.add_argument("simulator", nargs="?", default="tracebed")
    arguments = parser.parse_args()
    content = json.loads(arguments.file.read_text(encoding="utf-8"))
    found = {verdict["simulator"]["name"]: verdict for verdict in content["simulators"]}
    if arguments.simulator not in found:
        parser.error(f"{arguments.file} has {', '.join(found)}, and not {arguments.simulator}")
    verdict = found[arguments.simulator]
    sys.stdout.write(f"{verdict['verdict']}: {verdict['headline']}\n\n{by_metric(verdict)}\n\n{by_case(verdict)}\n")


if __name__ == "__main__":
    main()
