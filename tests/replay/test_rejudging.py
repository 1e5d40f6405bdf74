"""The health of real runs is judged again, by the journal and the default limits: no file of the run is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.commands import call
from tests.oracles.redecided import emulated
from tests.pages import rendered, without_pictures
from tests.replay.test_health import agents, jobs_of, ranks
from tests.runs import replaying
from tests.validation.test_validation import predicted, repetitions, validated
from tracebed.ground.errors import ExitCode, InputError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.health import Value, judged
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.replay.thresholds import SIGNALS, HealthThresholds, TimeScale
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.watching.follower import view_of
from tracebed.orchestrator.watching.openmetrics import families
from tracebed.validation.fitting.cases import cases_of
from tracebed.validation.verdict.noise import noise_floor
from tracebed.validation.verdict.rejudging import reassessed_health
from tracebed.validation.verdict.rule import Reason, Verdict

WIDE = "all: {" + ", ".join(f"{name}: {{degraded: 1.0e+6, unhealthy: 1.0e+6}}" for name in SIGNALS) + "}\n"
TIMES = TimeScale(1.0, 100.0, 40.0)

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def by_wide_limits(**signals: float) -> dict[str, Any]:
    """Return the record of a replay with thresholds of a million."""
    values = {name: Value(value, "n2") for name, value in signals.items()}
    return judged(values, HealthThresholds.parse(WIDE, "wide.yaml"), "emulated", TIMES)


def test_no_verdict_is_accurate_by_wide_limits_of_health() -> None:
    health = by_wide_limits(agents_lost=1)
    assert health["state"] == "healthy"
    found = validated(repetitions(5, health=health))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.exit_code is ExitCode.UNHEALTHY
    assert found.reasons == (Reason.UNHEALTHY,)
    assert "5 of 5 real runs are unhealthy, most often: nodes lost" in found.headline
    assert found.by_own_limits is Verdict.ACCURATE
    assert found.to_json()["by_own_limits"] == "accurate"
    warnings = "\n".join(found.warnings)
    assert (
        "5 of 5 runs (rep-01, and others): its limits of health are wider than the defaults (nodes_missing" in warnings
    )
    assert "by the limits of health of the runs themselves, the verdict is accurate instead of inconclusive" in warnings


def test_wide_limits_without_an_effect_are_named_and_change_nothing() -> None:
    found = validated(repetitions(5, health=by_wide_limits(agents_lost=0)))
    assert found.verdict is Verdict.ACCURATE
    assert found.by_own_limits is None
    assert any("wider than the defaults" in text for text in found.warnings)


def test_narrow_limits_of_a_run_still_hold() -> None:
    strict = HealthThresholds.parse("all: {loop_late_s: {unhealthy: 0}}\n", "strict.yaml")
    health = judged({"loop_late_s": Value(0.001)}, strict, "emulated", TIMES)
    [run] = repetitions(1, health=health)
    found = reassessed_health(run)
    assert (found.state, found.lenient) == ("unhealthy", False)


def test_no_state_is_believed_against_the_figures_in_the_file() -> None:
    health = by_wide_limits(agents_lost=2) | {"state": "healthy", "causes": []}
    for key in ("wider", "defaults"):
        del health[key]
    [run] = repetitions(1, health=health)
    assert reassessed_health(run).state == "unhealthy"
    [failed] = repetitions(1, states={"3": "failed", "7": "failed"})
    assert [cause["signal"] for cause in reassessed_health(failed).causes] == ["jobs_disturbed"]


def test_a_run_by_wide_limits_is_no_noise_and_no_fit() -> None:
    runs = repetitions(3, health=by_wide_limits(agents_lost=1))
    with pytest.raises(InputError, match="no run is usable: run 1: unhealthy: nodes lost"):
        noise_floor(runs)
    with pytest.raises(InputError, match="the run is unhealthy: nodes lost"):
        cases_of({}, {"one": runs[0]})


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a replay that lost an agent, judged by limits of a million."""
    folder = tmp_path_factory.mktemp("rejudged")
    killed: list[psutil.Process] = []

    def kill(ended: int) -> None:
        if ranks() and not killed:
            killed.append(agents()[0])
            killed[0].kill()

    wide = HealthThresholds.parse(WIDE, "wide.yaml")
    replay(
        jobs_of(3, 100.0),
        emulated(2),
        "fcfs",
        folder / "run",
        **replaying(100, health=wide),
        on_progress=kill,
    )
    return folder / "run"


def changed(run: Path, target: Path, *, journal: bool = True) -> Run:
    """Return a copy of a run whose `run.json` says that the run is healthy, and has neither causes nor figures."""
    Run.load(run).save(target)
    if journal:
        (target / JOURNAL).write_bytes((run / JOURNAL).read_bytes())
    raw = json.loads((target / "run.json").read_text())
    raw["health"] = {"state": "healthy", "causes": [], "signals": {}, "thresholds": "0" * 64}
    (target / "run.json").write_text(json.dumps(raw))
    return Run.load(target)


def test_no_state_is_believed_against_the_journal(damaged: Path, tmp_path: Path) -> None:
    run = Run.load(damaged)
    assert run.info.health["state"] == "healthy"
    assert "agents_lost: unhealthy above 1e+06 instead of 0" in run.info.health["wider"]
    assert run.info.health["defaults"]["state"] == "unhealthy"
    found = reassessed_health(run)
    assert (found.state, found.lenient) == ("unhealthy", True)
    assert found.causes[0]["text"].startswith("nodes lost (n")
    again = reassessed_health(changed(damaged, tmp_path / "changed"))
    assert (again.state, again.causes) == ("unhealthy", found.causes)
    without = reassessed_health(changed(damaged, tmp_path / "without", journal=False))
    assert without.state == "unhealthy"  # the outage in run.json
    assert "its journal is missing: the health was judged by the figures in run.json and by the tables" in without.notes


@without_pictures()
def test_no_figure_of_the_file_is_reported_against_the_journal(damaged: Path, tmp_path: Path) -> None:
    """The report listed the figures of `run.json` below the causes in the journal."""
    run = changed(damaged, tmp_path / "changed")
    assert run.info.health["signals"] == {}
    found = reassessed_health(run)
    assert (found.signals["agents_lost"], found.signals["interrupted"]) == (1, 0)
    sim = Run.load(damaged)
    sim.info.source, sim.info.execution = "simulator", "simulated"
    page = rendered(run, sim)
    section = page[page.index('<section id="health"') :].partition("</section>")[0]
    assert "<dt>agents_lost</dt><dd>1</dd>" in section
    assert HealthThresholds.read().sha256[:12] in section and "0" * 12 not in section


def test_no_exported_state_is_that_of_wide_limits(damaged: Path) -> None:
    pytest.importorskip("prometheus_client")
    facts, entries = journal.read(damaged / JOURNAL)
    view = view_of(facts)
    view.apply(entries)
    assert view.health()["state"] == "healthy"
    [states] = [family for family in families(view) if family.name == "tracebed_health"]
    values = {sample.labels["state"]: sample.value for sample in states.samples}
    assert values == {"healthy": 0.0, "degraded": 0.0, "unhealthy": 1.0}


def test_a_journal_of_another_run_is_not_used(damaged: Path, tmp_path: Path) -> None:
    run = changed(damaged, tmp_path / "changed")
    run.jobs["end"] += 50.0
    assert any("its journal has other times or states of jobs" in note for note in reassessed_health(run).notes)
    (tmp_path / "changed" / JOURNAL).write_bytes(b"no journal")
    assert any("its journal cannot be used" in note for note in reassessed_health(run).notes)


def test_no_command_ends_with_0_for_a_replay_that_lost_an_agent(damaged: Path, tmp_path: Path) -> None:
    real = Run.load(damaged)
    real.info.source, real.info.execution = "simulator", "simulated"
    real.save(tmp_path / "sim")
    result = call("compare", "--real", damaged, "--predicted", tmp_path / "sim")
    assert result.return_value is ExitCode.UNHEALTHY
    assert "the real run: its limits of health are wider than the defaults" in result.stderr
    assert "by the limits of health of the runs themselves" in result.stdout


def test_a_log_says_that_it_has_no_record_of_its_machine() -> None:
    real = repetitions(5, source="log", execution="logged", health={})
    found = validated(real, predicted())
    assert any("it is a log without a record of its machine" in text for text in found.warnings)
