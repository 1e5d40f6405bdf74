"""The picture of a replay for a terminal, and the same state as one line."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tracebed.converters.workload import IntArray
from tracebed.ground.display import time_text
from tracebed.orchestrator.watching.view import Status, View

WINDOW_S = 60.0  # length of the window of the node bars, wall s
COLORS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "bright_blue",
    "bright_red",
    "bright_cyan",
    "bright_magenta",
    "bright_green",
)
SHADES = " ░▒▓█"  # shades for the share of busy nodes of a row, from 0 to 1
HEALTH_COLORS = {"healthy": "green", "degraded": "yellow", "unhealthy": "red"}
FAULTS_SHOWN = 4
CAUSES_SHOWN = 2


def picture(view: View, width: int, height: int) -> RenderableType:
    """Return the picture of a replay.

    Args:
        view: the state of the replay.
        width: columns of the terminal.
        height: rows of the terminal. If there are more nodes than rows, a row stands for several nodes.
    """
    parts: list[RenderableType] = [_title(view), _progress(view, width), _figures(view)]
    health = _health(view, width)
    faults = list(view.faults)[-FAULTS_SHOWN:]
    room = height - len(parts) - len(health) - 5 - len(faults)
    parts += [*health, _nodes(view, width, max(4, room))]
    lines = [f"{fault.time:,.0f} s: {fault.text}" for fault in faults]
    parts += [Text(text, style="yellow", overflow="ellipsis", no_wrap=True) for text in lines]
    return Group(*parts)


def line(view: View) -> str:
    """Return the state of a replay as one line, for a log."""
    counts, late = view.counts(), view.lateness()
    parts = [
        f"{time_text(max(0.0, view.now - view.jobs.submit[0]))} of the trace",
        f"{view.finished:,} of {len(view.jobs):,} jobs ended",
        f"{counts['running']:,} running on {view.nodes_busy:,} of {len(view.info.nodes):,} nodes",
        f"{counts['waiting']:,} waiting",
    ]
    if "p99" in late:
        parts.append(f"submissions late by {late['p99']:.3g} ms (p99)")
    if view.nodes_out:
        parts.append(f"{len(view.nodes_out):,} nodes out")
    if view.nodes_asleep:
        parts.append(f"{view.nodes_asleep:,} nodes asleep")
    parts.append(_state(view.health()))
    parts.append(_left(view))
    return ", ".join(parts)


def _left(view: View) -> str:
    """Return the time left, or how the replay has ended."""
    if view.status is Status.RUNNING:
        return f"about {time_text(view.left_s())} left"
    return f"{view.status} ({view.reason})" if view.status is Status.INTERRUPTED else str(view.status)


def _title(view: View) -> Text:
    info = view.info
    name = info.workload.get("name", "")
    return Text.assemble((str(name), "bold"), f" under {info.policy} on {len(info.nodes):,} {info.execution} nodes")


def _progress(view: View, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    left = _left(view)
    done = f"{view.finished:,}/{len(view.jobs):,} jobs"
    bar = ProgressBar(total=len(view.jobs), completed=view.finished, width=max(10, width - len(done) - len(left) - 3))
    grid.add_row(bar, done, left)
    return grid


def _figures(view: View) -> Table:
    """Return the queue, the states of jobs and nodes, and the lateness, in two columns of names and values."""
    counts, late = view.counts(), view.lateness()
    grid = Table.grid(padding=(0, 2))
    for _ in range(4):
        grid.add_column(overflow="ellipsis", no_wrap=True)
    waiting = [view.jobs.ids[job] for job in view.waiting()[:4]]
    more = ", ..." if counts["waiting"] > len(waiting) else ""
    queue = f"{counts['waiting']:,}" + (f" ({', '.join(waiting)}{more})" if waiting else "")
    ended = ", ".join(f"{count:,} {name}" for name, count in counts.items() if name not in ("planned", "waiting"))
    used = view.utilization()
    busy = f"{view.nodes_busy:,} of {len(view.info.nodes):,}" + (f", utilization {used:.1%}" if used == used else "")
    out = ", out unknown" if view.nodes_out is None else f", {len(view.nodes_out):,} out" if view.nodes_out else ""
    out += f", {view.nodes_asleep:,} asleep" if view.nodes_asleep else ""
    shown = f"p50 {late['p50']:.3g}, p99 {late['p99']:.3g}, max {late['max']:.3g} ms" if "p99" in late else "-"
    grid.add_row("queue", queue, "lateness", shown)
    grid.add_row("jobs", ended, "resizes", f"{view.resizes:,}")
    grid.add_row("nodes", busy + out, "speed", f"{view.info.speed:g}x")
    if view.core_changes:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in sorted(view.core_changes.items()))
        grid.add_row("cores", f"{view.core_changes.total():,} changes ({causes})", "hand-overs", _worst(view))
    return grid


def _worst(view: View) -> str:
    """Return the longest overlap and gap of two masks on a CPU."""
    worst = view.handovers()
    return ", ".join(f"{name} {1e3 * worst[f'{name}_s']:.3g} ms" for name in ("overlap", "gap")) if worst else "-"


def _state(health: Mapping[str, Any]) -> str:
    """Return the state of health, followed by the state under the default limits if the replay has wider limits."""
    usual = health.get("defaults", {}).get("state", health["state"])
    return f"{health['state']} (by the default limits {usual})" if usual != health["state"] else str(health["state"])


def _health(view: View, width: int) -> list[Text]:
    """Return the health so far, with its worst causes, in as many lines as it needs."""
    state = view.health()
    causes, rest = state["causes"][:CAUSES_SHOWN], len(state["causes"][CAUSES_SHOWN:])
    texts = [cause["text"] for cause in causes] + ([f"{rest} more"] if rest else [])
    why = f" ({'; '.join(texts)})" if texts else ""
    lines = textwrap.wrap(f"health {_state(state)}{why}", width, subsequent_indent=" " * len("health "))
    first, *others = (Text(text, no_wrap=True) for text in lines)
    first.stylize(HEALTH_COLORS[state["state"]], len("health "), len("health ") + len(_state(state)))
    return [first, *others]


def _nodes(view: View, width: int, rows: int) -> RenderableType:
    """Return the bars of the jobs on each node in the last `WINDOW_S` wall seconds."""
    names = [node.name for node in view.info.nodes]
    per_row = math.ceil(len(names) / rows)
    labels = [
        names[first] if per_row == 1 else f"{names[first]}-{names[min(first + per_row, len(names)) - 1]}"
        for first in range(0, len(names), per_row)
    ]
    label_width = min(max(map(len, labels)), width // 3)
    columns = max(10, width - label_width - 2)
    window = WINDOW_S * view.info.speed
    begin = max(view.jobs.submit[0], view.now - window) if view.now == view.now else 0.0
    grid = view.occupation(begin, columns)
    out = set(view.nodes_out or ())
    lines: list[RenderableType] = []
    for row, label in enumerate(labels):
        text = Text()  # without a style, which would apply to the bar too
        text.append(f"{label[:label_width]:<{label_width}} ", "red" if row in out and per_row == 1 else "dim")
        part = grid[:, row * per_row : (row + 1) * per_row]
        lines.append(text.append_text(_bar(view, part[:, 0]) if per_row == 1 else _shades(part)))
    span = time_text(max(0.0, view.now - begin)) if view.now == view.now else ""
    lines.append(Text(f"{'':<{label_width}} the last {span} of the trace" if span else "", style="dim"))
    return Group(*lines)


def _bar(view: View, jobs: IntArray) -> Text:
    """Return the bar of a node. Each job has a color, and its name if there is room. Jobs that share it are stacked."""
    text = Text()
    edges = [0, *(np.flatnonzero(np.diff(jobs).any(axis=0)) + 1).tolist(), jobs.shape[1]]
    for begin, end in itertools.pairwise(edges):
        (job, guest), length = jobs[:, begin].tolist(), end - begin
        if job != guest:
            colors = [COLORS[each % len(COLORS)] if each >= 0 else "default" for each in (guest, job)]
            text.append("\N{LOWER HALF BLOCK}" * length, style=" on ".join(colors))
        elif job < 0:
            text.append("·" * length, style="dim")
        else:
            name = view.jobs.ids[job] if len(view.jobs.ids[job]) <= length else ""
            text.append(f"{name:<{length}}", style=f"black on {COLORS[job % len(COLORS)]}")
    return text


def _shades(jobs: IntArray) -> Text:
    """Return the bar of several nodes: the share of busy nodes as a shade."""
    share = (jobs >= 0).mean(axis=(0, 1))
    shades = np.ceil(share * (len(SHADES) - 1)).astype(int)
    return Text("".join(SHADES[shade] for shade in shades), style="cyan")


def snapshot(view: View) -> dict[str, Any]:
    """Return the state of a replay as values, for JSON."""
    return {
        "workload": view.info.workload.get("name", ""),
        "policy": view.info.policy,
        "time_s": view.now,
        "ended": view.status is not Status.RUNNING,
        "status": str(view.status),
        "jobs": view.counts(),
        "nodes": {"all": len(view.info.nodes)} | view.node_counts(),
        "utilization": view.utilization(),
        "resizes": view.resizes,
        "core_changes": dict(sorted(view.core_changes.items())),
        "handovers": view.handovers(),
        "lateness_ms": view.lateness(),
        "health": view.health(),
        "faults": dict(sorted(view.fault_counts.items())),
        "left_s": view.left_s(),
    }
