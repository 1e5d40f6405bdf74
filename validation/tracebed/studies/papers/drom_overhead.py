"""The overhead of DROM without a change of cores: a program under an administrator beside the same program alone."""

from __future__ import annotations

from statistics import median

from tracebed.ground.errors import InputError
from tracebed.orchestrator.calibrating.drom_overhead import MODES, pairs
from tracebed.studies.papers.base import Findings, FindingsTable, Settings
from tracebed.validation.experiments.views.ledger import Measured

FIGURES = {"run_time_s": "run time", "cpu_s": "CPU time"}
ITERATIONS = 200


def overhead(settings: Settings) -> Findings:
    """Run time of a DROM-enabled program beside the same without DROM (DROM paper, section 6).

    Raises:
        InputError: an inventory or a speed is given.
        TestbedError: a run has failed.
    """
    if settings.inventory or settings.speed:
        what = "drom-overhead runs a program on this machine, without a replay"
        raise InputError(what, hint="leave out --inventory and --speed of tracebed experiment")
    figures = []
    for row in pairs(settings.repetitions, ITERATIONS):
        figures.append(row)
        if len(figures) % 2 == 0:
            settings.on_step(f"pair {row['repetition']} of {settings.repetitions}")
    rows = []
    for name, label in FIGURES.items():
        plain, drom = ([row[name] for row in figures if row["mode"] == mode] for mode in MODES)  # in order of the pairs
        ratios = [with_drom / alone for alone, with_drom in zip(plain, drom, strict=True)]
        medians = (f"{median(plain):.3f} s", f"{median(drom):.3f} s", f"{median(ratios):.4f}")
        rows.append([label, *medians, f"{min(ratios):.4f} to {max(ratios):.4f}"])
    columns = ("", "plain, median", "with DROM, median", "ratio, median of pairs", "ratio, range")
    notes = (
        f"PILS on all CPUs of this machine: {ITERATIONS} iterations of 5 ms, a poll in each. The paper compared on two"
        " nodes of MareNostrum 3, and prints no figure.",
        "Run times depend on other programs of this machine, CPU times hardly.",
    )
    table = FindingsTable(f"The same work with and without DROM, {settings.repetitions} pairs", columns, rows)
    return Findings("Overhead of DROM", [table], notes, Measured.of(figures, ("mode",)))
