"""Logs of the AMTE scheduler, written of any run as its logger prints them."""

from __future__ import annotations

from tracebed.orchestrator.run import Run


def log_of(run: Run, folder: str = "/batch/job_{:02d}") -> str:
    """Return the log of a run: expansions when they were decided, shrinks when their nodes were idle.

    Args:
        run: the run, with allocations.
        folder: folder of a job, with its number in the order of the starts.
    """
    held: dict[str, list[tuple[float, float, int]]] = {}  # job -> start, end and node of each period
    for job, node, count, start, end in run.allocations[["job_id", "node", "count", "start", "end"]].values.tolist():
        held.setdefault(job, []).extend((start, end, number) for number in range(node, node + count))
    lines: list[tuple[float, int, str]] = []
    last = 0.0
    jobs = run.jobs.sort_values("start", kind="stable")[["job_id", "start", "end"]].values.tolist()
    for number, (job, begin, done) in enumerate(jobs):
        name, last = folder.format(number), max(last, done)
        lines.append((done, 0, f"{name}; terminated"))
        for since in {start for start, *_ in held[job]}:
            added = sorted(node for start, _, node in held[job] if start == since)
            lines.append((since, 2, f"{name}; {'started' if since == begin else 'expand'}; {_hosts(run, added)}"))
        for until in {end for _, end, _ in held[job] if end < done}:
            dropped = sorted(node for _, end, node in held[job] if end == until)
            lines.append((until, 1, f"{name}; released; {_hosts(run, dropped)}"))
    written = [f"{round(time * 1e9)};{text}" for time, _, text in sorted(lines)]
    return "\n".join([*written, f"{round(last * 1e9) + 19_000_000_000}; all jobs completed"]) + "\n"


def _hosts(run: Run, nodes: list[int]) -> str:
    return f"[{', '.join(run.info.nodes[number].name for number in nodes)}]"
