"""The setup of a run: one place for each setting, from which options, keywords, YAML keys and run.json are made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pytest

import tracebed.api as tb
from tests.oracles.drawn import draw
from tests.oracles.engines import case
from tracebed.cli import tracebed
from tracebed.cli.setup_options import declared, table_of_settings
from tracebed.ground.errors import InputError
from tracebed.orchestrator import setup
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.scheduling.policies.easy import Easy
from tracebed.orchestrator.setup import SETTINGS, SETUP_PARTS, Scheduling, Setup, Timing
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.experiment_schema import TestbedSpec

OTHER: dict[str, Any] = {
    "policy": "slurm",
    "policy_parameters": {"bf_interval": 7},
    "priority": "aging",
    "placement": "hilbert",
    "grid": "2x2",
    "interval_s": 5.0,
    "over_limit": "kill",
    "speed": 20.0,
    "runtime_model": "worst-case",
    "malleability_interval_s": 3.0,
    "overheads": {"launch_s": 0.5},
    "dispatched": True,
}
"""Setting -> a value that is not its default. A calibration is a file, and has tests of its own."""


def test_the_table_of_other_values_lacks_no_setting() -> None:
    assert {*OTHER} == {*SETTINGS} - {"calibration"}
    assert Setup.of(OTHER["policy"], **{name: OTHER[name] for name in OTHER if name != "policy"}).given.keys() == {
        *OTHER
    }


def offered(name: str, value: Any) -> dict[str, bool]:
    """Return where a setting appears: place -> whether it is there. `value` is not its default."""
    plain, other = Setup.of("easy"), Setup.of("easy", **{name: value})
    info = RunInfo("simulator", "simulated", [], {}, other)
    again = RunInfo.from_json(json.loads(json.dumps(info.as_dict())))

    def option_of(command: str) -> click.Option | None:
        found = tracebed.get_command(click.Context(tracebed), command)
        assert found is not None
        options = {each.name: each for each in found.params if isinstance(each, click.Option)}
        return options.get(name)

    def is_offered(command: str) -> bool:
        option = option_of(command)
        return option is not None and option.opts[-1] == declared(name)[-2] and bool(option.help)

    def is_taken(run: Callable[..., Any]) -> bool:
        try:
            run(**{name: value})
        except InputError as error:
            return "unknown setting" not in str(error)
        return True

    workload = tb.generate("cirne", jobs=3, nodes=4, seed=1)
    settings = {"policy": "easy", "grid": "2x2", name: value}
    predicted = tb.simulate(workload, **settings).info.setup.given if name != "policy_parameters" else {name: value}
    return {
        "option of simulate": is_offered("simulate") or name == "dispatched",
        "option of replay": is_offered("replay") or name in SETUP_PARTS["timing"],
        "keyword of simulate": name in predicted,
        "keyword of Setup.of": is_taken(lambda **settings: Setup.of("easy", **settings)),
        "key of YAML files": name in {*Experiment.model_fields, "policy", "policy_parameters", "calibration"},
        "key of testbeds": name in {*TestbedSpec.model_fields, "policy", "policy_parameters", *SETUP_PARTS["timing"]},
        "run.json": name in info.as_dict()["setup"]["timing" if name in SETUP_PARTS["timing"] else "scheduling"],
        "read back": again.setup == other,
        "digest": plain.digest != other.digest,
        "report": _is_reported(name, info),
        "docs": f"| `{name}` |" in table_of_settings(),
        "help": bool(SETTINGS[name].metadata["about"].strip()),
    }


def _is_reported(name: str, info: RunInfo) -> bool:
    """Return whether the facts of a report have the setting."""
    own = {"policy": info.policy, "policy_parameters": info.policy_parameters, "speed": info.speed}
    each = "overhead_launch_s" if name == "overheads" else name
    return name in own or each in info.settings


@pytest.mark.parametrize("name", OTHER)
def test_each_setting_is_in_every_place(name: str) -> None:
    assert [place for place, there in offered(name, OTHER[name]).items() if not there] == []


def test_a_new_setting_is_added_in_one_place(tmp_path: Path) -> None:
    """A field that is added to `Scheduling` or `Timing` appears everywhere, in a process with the changed module."""
    source = Path(setup.__file__).read_text(encoding="utf-8")
    rooms = {"Scheduling": "dummy_s", "Timing": "other_dummy_s"}
    for room, name in rooms.items():
        field = f'    {name}: float = field(default=0.0, metadata=documented("A dummy."))\n'
        head, line, rest = source.partition(f"class {room}:\n")
        first = rest.index("    ", rest.index('"""\n\n') + 4) if '"""\n\n' in rest else 0
        source = head + line + rest[:first] + field + rest[first:]
    changed = tmp_path / "setup.py"
    changed.write_text(source, encoding="utf-8")
    script = f"""
import importlib.util, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
spec = importlib.util.spec_from_file_location("tracebed.orchestrator.setup", {str(changed)!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
import tracebed.orchestrator
tracebed.orchestrator.setup = module
spec.loader.exec_module(module)
from tests.simulation import test_setup
for name in {list(rooms.values())}:
    print([place for place, there in test_setup.offered(name, 3.0).items() if not there])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n[]\n"), done.stderr


@pytest.mark.parametrize("seed", range(20))
def test_a_prediction_repeats_under_the_setup_of_its_run_json(seed: int, tmp_path: Path) -> None:
    arguments = case(seed) | {"member": None}  # the distributions of a calibration are not in run.json,
    if made := arguments.get("calibration"):  # and neither are the costs of applications
        arguments["calibration"] = made.model_copy(update={"applications": {}})
    run = predict(**arguments)
    run.save(tmp_path / "run")
    setup = tb.Run.load(tmp_path / "run").info.setup
    again = predict(arguments["workload"], arguments["nodes"], setup)
    assert again.jobs.equals(run.jobs) and again.info.setup == setup


def test_the_sources_of_a_run_state_what_they_know() -> None:
    every = Setup.of("slurm", over_limit="kill", speed=2.0)

    def stated(source: str, **facts: Any) -> dict[str, list[str]]:
        return {
            room: [*names] for room, names in RunInfo(source, "x", [], {}, every, **facts).as_dict()["setup"].items()
        }

    names = {room: [*names] for room, names in SETUP_PARTS.items()}
    assert stated("simulator") == {
        "scheduling": names["scheduling"],
        "timing": [name for name in names["timing"] if name != "calibration"],
    }
    assert stated("replay") == {"scheduling": names["scheduling"], "timing": ["speed"]}
    of_batch = {"scheduling": ["policy", "policy_parameters", "over_limit"], "timing": ["speed"]}
    assert stated("replay", batch={"system": "slurm"}) == of_batch
    assert stated("log") == {"scheduling": ["policy", "policy_parameters"], "timing": ["speed"]}
    assert stated("batsim", imported={"file": "x"}) == stated("log")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"priorty": "aging"}, "unknown setting 'priorty' (did you mean priority"),
        ({"priority": "oldest"}, "unknown priority 'oldest'"),
        ({"placement": "hilbert@2x2"}, "placement is 'hilbert@2x2' (give placement hilbert and grid 2x2)"),
        ({"over_limit": "maybe"}, "unknown over_limit 'maybe'"),
        ({"interval_s": -1.0}, "interval_s is -1.0"),
        ({"speed": 0.0}, "speed is 0.0"),
        ({"runtime_model": "best"}, "unknown runtime_model 'best'"),
        ({"overheads": {"lunch_s": 1.0}}, "unknown overhead 'lunch_s' (did you mean launch_s"),
        ({"overheads": {"launch_s": "long"}}, "overhead launch_s is 'long'"),
        ({"overheads": {"grain_s": 1.0}, "malleability_interval_s": 1.0}, "both a grain and a malleability interval"),
        ({"policy_parameters": {"depth": 3}}, "depth"),
    ],
)
def test_an_invalid_setting_is_named(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=re.escape(what)):
        Setup.of("easy", **settings).resolved(4)


@pytest.mark.parametrize(
    "raw",
    [
        {"scheduling": {"policy": 3}},
        {"scheduling": {"policy": "easy", "policy_parameters": []}},
        {"scheduling": {"surprise": 3}},
        {"scheduling": []},
        {"timing": {"speed": "fast"}},
        {"timing": {"overheads": {"launch_s": -1}}},
        {"timing": {"overheads": 3}},
    ],
)
def test_a_damaged_setup_of_run_json_is_an_error(raw: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Setup.from_dict(raw)


def test_a_replay_takes_no_setting_of_predictions() -> None:
    with pytest.raises(InputError, match="overheads is a setting of predictions, not of replays"):
        Setup.of("easy", overheads=Overheads(1.0)).measured()
    assert Setup.of("easy", speed=3.0, dispatched=True).measured().timing == Timing(speed=3.0)


def test_a_policy_may_be_a_name_a_class_or_an_instance() -> None:
    named, of_class, of_instance = (Setup.of(policy).resolved(4)[0] for policy in ("easy", Easy, Easy()))
    assert named == of_class == of_instance
    with pytest.raises(InputError, match="parameters are given for an instance"):
        Setup.of(Easy(), policy_parameters={"depth": 1})


def test_a_setup_replaces_settings_of_a_setup() -> None:
    start = Setup.of("easy", speed=3.0, priority="aging")
    assert Setup.of(start) is not None and Setup.of(start) == start
    other = Setup.of(start, policy="fcfs", speed=4.0)
    assert (other.scheduling, other.timing) == (Scheduling(policy="fcfs", priority="aging"), Timing(speed=4.0))
    assert Setup.of(start, speed=None) == start
    assert asdict(replace(start.timing, speed=1.0)) == asdict(Timing())


def test_the_cases_of_the_engines_use_every_setting_of_a_prediction() -> None:
    """Otherwise a new setting would not be compared between the engines."""
    used = {name for seed in range(200) for name in {*case(seed), *draw(seed, "pref").options}}
    assert {"policy_parameters", "priority", "interval_s", "over_limit", "runtime_model", "overheads"} <= used
