"""The tables of metrics and margins for the documentation, generated from the metrics.

`python -m tests.oracles.metric_tables` prints both in Markdown. A test compares them with the pages.
"""

from __future__ import annotations

import sys

from tracebed.validation.metrics.standard import METRICS


def definitions() -> str:
    """Return the table of the metrics as Markdown: key, name and unit, definition."""
    rows = [f"| `{metric.name}` | {metric.title} | {metric.docs} |" for metric in METRICS]
    return "\n".join(["| key | name and unit | definition |", "|---|---|---|", *rows])


def margins() -> str:
    """Return the table of the margins as Markdown, gated metrics first."""
    with_margin = [(metric, metric.margin) for metric in METRICS if metric.margin is not None]
    rows = [
        f"| {metric.label} | {f'{100 * margin.relative:g} %' if margin.relative else ''} | "
        f"{f'{margin.absolute:g} {metric.unit}'.strip() if margin.absolute else ''} | "
        f"{'gate' if margin.gate else 'advisory'} |"
        for metric, margin in sorted(with_margin, key=lambda item: not item[1].gate)
    ]
    return "\n".join(["| metric | margin | at least | role in the verdict |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    sys.stdout.write(f"{definitions()}\n\n{margins()}\n")
