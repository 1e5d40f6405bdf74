"""The setup of a run: one place for each setting, from which options, keywords, YAML keys and run.json are made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import tracebed.api as tb
from tests.oracles.drawn import draw
from tests.oracles.engines import case
from tracebed.cli import tracebed
from tracebed.cli.setup_options import declared, table_of_settings
from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import YamlFile
from tracebed.orchestrator import setup
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.scheduling.policies.easy import Easy
from tracebed.orchestrator.scheduling.policies.sd import SlowdownDriven
from tracebed.orchestrator.setup import SETTINGS, SETUP_PARTS, Scheduling, Setup, Timing
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments.experiment import KEYS, Experiment
from tracebed.validation.experiments.experiment_schema import TestbedSpec
from tracebed.validation.setups import AXES

OTHER: dict[str, Any] = {
    "policy": "slurm",
    "policy_parameters": {"bf_interval": 7},
    "priority": "aging",
    "placement": "hilbert",
    "grid": "2x2",
    "dependencies": "ignore",
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


def in_process(added: dict[str, str], script: str, folder: Path, *, definitions: str = "") -> str:
    """Return the output of a script in a process in which `Scheduling` and `Timing` have the `added` fields."""
    source = Path(setup.__file__).read_text(encoding="utf-8")
    source = source.replace("UNKNOWN_POLICY =", f"{definitions}\nUNKNOWN_POLICY =", 1)
    for room, fields in added.items():
        head, line, rest = source.partition(f"class {room}:\n")
        first = rest.index("    ", rest.index('"""\n\n') + 4) if '"""\n\n' in rest else 0
        source = head + line + rest[:first] + textwrap.indent(fields, "    ") + rest[first:]
    changed = folder / "setup.py"
    changed.write_text(source, encoding="utf-8")
    begin = f"""
import importlib.util, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
spec = importlib.util.spec_from_file_location("tracebed.orchestrator.setup", {str(changed)!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
import tracebed.orchestrator
tracebed.orchestrator.setup = module
spec.loader.exec_module(module)
"""
    command = [sys.executable, "-c", begin + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_setting_is_added_in_one_place(tmp_path: Path) -> None:
    """A field that is added to `Scheduling` or `Timing` appears everywhere, in a process with the changed module."""
    rooms = {"Scheduling": "dummy_s", "Timing": "other_dummy_s"}
    added = {
        room: f'{name}: float = field(default=0.0, metadata=documented("A dummy."))\n' for room, name in rooms.items()
    }
    script = f"""
        from tests.simulation import test_setup
        for name in {list(rooms.values())}:
            print([place for place, there in test_setup.offered(name, 3.0).items() if not there])
        """
    assert in_process(added, script, tmp_path) == "[]\n[]\n"


LEVEL = """
class Level(enum.StrEnum):
    LOW = "low"
    HIGH = "high"
"""
ADDED = """
longest_queue: int = field(default=0, metadata=documented("A dummy.", least=0, most=50, axis=True))
most_jobs: int | None = field(default=None, metadata=documented("A dummy.", least=1))
share: float = field(default=0.5, metadata=documented("A dummy.", least=0, most=0.9))
strict: bool = field(default=False, metadata=documented("A dummy."))
level: Level = field(default=Level.LOW, metadata=documented("A dummy."))
"""


def test_a_new_setting_has_the_type_and_the_range_of_its_field(tmp_path: Path) -> None:
    script = """
        import json
        import numpy as np
        from click.testing import CliRunner
        import tracebed.api as tb
        from tracebed.cli import tracebed as command
        from tracebed.ground.errors import InputError
        from tracebed.ground.yaml_file import YamlFile
        from tracebed.orchestrator.run import RunInfo
        from tracebed.orchestrator.setup import Setup
        from tracebed.validation.experiments.experiment import Experiment

        def said(run, *arguments, **settings):
            try:
                return run(*arguments, **settings)
            except InputError as error:
                return str(error)

        def experiment(**keys):
            text = json.dumps({"workloads": ["w"], "policies": ["easy"]} | keys)
            return YamlFile.parse(text, "e.yaml", hint="").checked(Experiment)

        w = tb.generate("cirne", jobs=3, nodes=4, seed=1)
        own = {"longest_queue": np.int64(5), "share": np.float32(0.25)}
        made = RunInfo("simulator", "simulated", [], {}, Setup.of("easy", **own))
        kept = json.loads(json.dumps(made.as_dict()))
        print(kept["setup"]["scheduling"]["longest_queue"], RunInfo.from_json(kept).setup == made.setup)
        wrong = {"longest_queue": ["abc", 2.5, -3, 51, True], "most_jobs": [0, 2.5], "share": [1, float("nan")]}
        wrong |= {"strict": [1, "no"], "level": ["medium"]}
        for name, values in wrong.items():
            for value in values:
                of_api = said(tb.simulate, w, "easy", **{name: value})
                assert of_api == said(Setup.from_dict, {"scheduling": {name: value}}), of_api
                kept["setup"]["scheduling"] = {name: value}
                of_file = said(RunInfo.from_json, kept)
                assert of_api.partition(" (")[0] in of_file, of_file
                refused = said(experiment, **{name: value})
                assert name in refused, refused
                words = [f"--{name.replace('_', '-')}", str(value)]
                done = CliRunner().invoke(command, ["simulate", "w.swf", "--policy", "easy", *words])
                assert done.exit_code == 2, done.output
                assert f"Invalid value for '{words[0]}'" in done.output or name == "strict", done.output
                print(of_api)
        several = experiment(longest_queue=[5, 7])
        print([(point.longest_queue, several.setup(point).scheduling.longest_queue) for point in several.points()])
        print(said(experiment, longest_queue=[5, 51]))
        print(said(experiment, most_jobs=[5, 7]))
        print(experiment(level="high", most_jobs=7).setup(experiment().points()[0]).scheduling.level)
        """
    said = in_process({"Scheduling": ADDED}, script, tmp_path, definitions=LEVEL)
    assert (
        said
        == """5 True
longest_queue is 'abc' (give a whole number from 0 to 50)
longest_queue is 2.5 (give a whole number from 0 to 50)
longest_queue is -3 (give a whole number from 0 to 50)
longest_queue is 51 (give a whole number from 0 to 50)
longest_queue is True (give a whole number from 0 to 50)
most_jobs is 0 (give a whole number of at least 1)
most_jobs is 2.5 (give a whole number of at least 1)
share is 1 (give a number from 0 to 0.9)
share is nan (give a number from 0 to 0.9)
strict is 1 (give true or false)
strict is 'no' (give true or false)
unknown level 'medium' (one of low, high)
[(5, 5), (7, 7)]
e.yaml:1: longest_queue.1: longest_queue is 51; give a whole number from 0 to 50
e.yaml:1: most_jobs: takes one value, not a list
high
"""
    )


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
        ({"policy": 3}, "policy is 3 (give a text)"),
        ({"policy_parameters": "depth=3"}, "policy_parameters is 'depth=3' (give names and their values)"),
        ({"grid": 4}, "grid is 4 (give a text)"),
        ({"placement": ["first"]}, "placement is ['first'] (give a text)"),
        ({"interval_s": "10"}, "interval_s is '10' (give a number from 0 to 1,000,000,000)"),
        ({"interval_s": True}, "interval_s is True"),
        ({"malleability_interval_s": float("nan")}, "malleability_interval_s is nan"),
        ({"dispatched": "no"}, "dispatched is 'no' (give true or false)"),
        ({"overheads": 0.1}, "overheads is 0.1 (give overheads by name, in wall seconds)"),
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
        {"timing": {"dispatched": "no"}},
        {"scheduling": {"grid": None}},
    ],
)
def test_a_damaged_setup_of_run_json_is_an_error(raw: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Setup.from_dict(raw)
    made = RunInfo("simulator", "simulated", [], {}, Setup()).as_dict()
    with pytest.raises(InputError, match="setup: "):
        RunInfo.from_json(json.loads(json.dumps(made | {"setup": raw})))


@pytest.mark.parametrize("keys", [{"grid": ["2x2", "4x1"]}, {"testbed": {"inventory": "x", "interval_s": [1, 2]}}])
def test_a_list_of_a_setting_that_is_no_axis_says_so(keys: dict[str, Any]) -> None:
    text = json.dumps({"workloads": ["w"], "policies": ["easy"]} | keys)
    with pytest.raises(InputError, match=r"(grid|testbed\.interval_s): takes one value, not a list"):
        YamlFile.parse(text, "e.yaml", hint="").checked(Experiment)


def test_the_axes_of_an_experiment_are_declared() -> None:
    assert {*AXES} == {"priority", "runtime_model", "interval_s", "malleability_interval_s"}
    assert {*AXES} < {*KEYS}


def test_a_number_of_numpy_is_read_back_from_run_json() -> None:
    made = RunInfo("simulator", "simulated", [], {}, Setup.of("easy", interval_s=np.float32(5), speed=np.int64(2)))
    assert RunInfo.from_json(json.loads(json.dumps(made.as_dict()))).setup == made.setup


@pytest.mark.parametrize("policy", ["sd", SlowdownDriven, SlowdownDriven(), Setup.of("sd"), Setup.of(SlowdownDriven())])
def test_a_parameter_of_the_policy_is_no_setting(policy: Any) -> None:
    workload = tb.generate("cirne", jobs=3, nodes=4, seed=1)
    for run in (Setup.of, partial(tb.simulate, workload), partial(tb.replay, workload, nodes="emulated-4")):
        with pytest.raises(InputError, match="unknown setting 'depth'") as error:
            run(policy, depth=3)
        assert error.value.hint == 'it is a parameter of the policy: policy_parameters={"depth": ...}'
    with pytest.raises(InputError, match=r"unknown setting 'dept' \(one of policy, "):
        Setup.of(policy, dept=3)


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
