"""`tracebed nodes bench reconfigure`: the stages of resizes through connections and through MPI."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from tracebed.benchmarks.standalone import resizing
from tracebed.cli import tracebed
from tracebed.ground.errors import InputError, TestbedError

pytestmark = pytest.mark.usefixtures("no_process_is_left")
NO_MPI = pytest.mark.skipif(find_spec("mpi4py") is None, reason="pip install 'tracebed[mpi]'")


def test_ranks_join_and_leave_and_each_stage_is_measured() -> None:
    stages = resizing.reconfigure([1, 2, 4, 2], 1.0)
    assert [(change.before, change.after) for change in stages] == [(1, 2), (2, 4), (4, 2)]
    assert [change.moved_mib for change in stages] == [0.5, 0.5, 0.5]  # each rank that stays keeps what it can
    assert [change.spawn_s > 0 for change in stages] == [True, True, False]
    assert [change.termination_s > 0 for change in stages] == [False, False, True]
    assert all(change.redistribution_s > 0 and change.decision_s >= 0 for change in stages)
    assert all(change.plain_spawn_s for change in stages)
    assert stages[0].plain_spawn_s == stages[2].plain_spawn_s


def test_a_size_that_stays_is_no_change_and_plain_spawns_can_be_left_out() -> None:
    (change,) = resizing.reconfigure([2, 2, 1], 0.0, plain=False)
    assert (change.before, change.after, change.moved_mib, change.plain_spawn_s) == (2, 1, 0.0, None)


def test_invalid_orders_and_failed_jobs_are_errors() -> None:
    for sizes, state_mib in (([], 1.0), ([1, 0], 1.0), ([1], -1.0), ([1], float("nan"))):
        with pytest.raises(InputError, match="invalid"):
            resizing.reconfigure(sizes, state_mib)
    with pytest.raises(TestbedError, match=r"did not end within 0\.1 s"):
        resizing.reconfigure([1, 2], 1.0, timeout_s=0.1)
    with pytest.raises(TestbedError, match="too large"):
        resizing.reconfigure([1, 2], 2.0**40)


@pytest.mark.parametrize("through", ["connections", pytest.param("mpi", marks=[NO_MPI, pytest.mark.slow])])
def test_the_command_prints_the_same_table_of_stages(through: str) -> None:
    words = [
        "nodes",
        "bench",
        "reconfigure",
        "--set",
        f"through={through}",
        "--set",
        "sizes=1,2,1",
        "--set",
        "state=512KiB",
    ]
    done = CliRunner().invoke(tracebed, words)
    assert done.exit_code == 0, done.output
    heading, *rows = [line.split() for line in done.stdout.splitlines()]
    assert heading[:5] == ["Ranks", "Decision", "ms", "Spawn", "ms"]
    assert [row[:3] for row in rows] == [["1", "->", "2"], ["2", "->", "1"]]
    done = CliRunner().invoke(tracebed, [*words, "--json"])
    document = json.loads(done.stdout)
    assert (document["schema"], document["through"]) == ("tracebed-bench-reconfigure/1", through)
    assert [change["moved_mib"] for change in document["changes"]] == [0.25, 0.25]
    assert all(change["ratio"] == change["total_s"] / change["plain_spawn_s"] for change in document["changes"])


@pytest.mark.parametrize("setting", ["sizes=1,x", "sizes=1,0", "state=8Mb", "state=-1MiB"])
def test_invalid_settings_are_refused(setting: str) -> None:
    result = CliRunner().invoke(tracebed, ["nodes", "bench", "reconfigure", "--set", setting])
    assert isinstance(result.exception, InputError | SystemExit), result.output
    assert "Traceback" not in result.output
