"""Machines: their form in JSON, their sources, and `--machine`; executors by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests import packages
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.power import NodePower
from tracebed.machine.sources import SOURCES, MachineSource, read_machine
from tracebed.orchestrator.executors import EXECUTORS, Options, execute
from tracebed.orchestrator.run import Run, RunInfo, run_of_jobs, workload_facts
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.machine import SlurmMachine
from tracebed.testing.workloads import contended_workload

ROOT = Path(__file__).parents[2]
CONF = """\
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/multifactor
PriorityWeightAge=1000
SchedulerParameters=bf_interval=20
NodeName=n[1-3] CPUs=4
NodeName=g1 CPUs=8 Gres=gpu:2
GresTypes=gpu
PartitionName=main Nodes=n[1-3] Default=YES MaxTime=60
PartitionName=gpu Nodes=g1
"""

CLASSES = st.builds(
    NodeClass,
    count=st.integers(1, 30),
    cores=st.integers(1, 64),
    sockets=st.integers(1, 4),
    threads=st.integers(1, 2),
    memory_mib=st.none() | st.integers(1, 2**40),
    gres=st.dictionaries(st.sampled_from(["gpu", "gpu:a100", "bb"]), st.integers(0, 8)),
    features=st.lists(st.sampled_from(["new", "old"]), unique=True).map(tuple),
    weight=st.integers(0, 10),
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Return a machine whose partitions have some of its nodes."""
    classes = tuple(draw(st.lists(CLASSES, min_size=1, max_size=3)))
    names = [node.name for node in Machine(classes=classes).nodes]
    partitions = [
        Partition(
            name=name,
            nodes=tuple(draw(st.lists(st.sampled_from(names), unique=True))),
            default=draw(st.booleans()),
            limit_s=draw(st.floats(0, 1e6)),
            shared=draw(st.booleans()),
        )
        for name in draw(st.lists(st.sampled_from("abc"), unique=True))
    ]
    grid = draw(st.sampled_from(["", str(len(names))]))
    return Machine(classes=classes, partitions=tuple(partitions), grid=grid)


@given(machines(), machines())
def test_a_machine_in_json_is_the_same_machine(one: Machine, other: Machine) -> None:
    again = Machine.from_json(json.loads(json.dumps(one.to_json())))
    assert (again, again.nodes, again.digest) == (one, one.nodes, one.digest)
    assert (one.digest == other.digest) == (one == other)


@given(st.lists(st.builds(NodeFacts, st.uuids().map(str), st.integers(1, 3), st.integers(1, 2)), min_size=1))
def test_a_machine_of_nodes_has_these_nodes(nodes: list[NodeFacts]) -> None:
    machine = Machine.of_nodes(nodes)
    assert machine.nodes == tuple(nodes) == Machine.from_json(machine.to_json()).nodes
    assert len(machine.classes) <= len(nodes)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "classes: required key is missing"),
        ({"classes": []}, "the machine has no nodes"),
        ({"classes": [{"cores": 4}]}, "either names or a count"),
        ({"classes": [{"count": 4, "names": ["n1"]}]}, "either names or a count"),
        ({"classes": [{"count": 4, "cores": 0}]}, "cores is 0"),
        ({"classes": [{"count": 4, "kores": 0}]}, "classes.0.kores: unknown key"),
        ({"classes": [{"names": ["n[2-1]"]}]}, "is empty"),
        ({"classes": [{"names": ["n[1-*]"]}]}, "has no end"),
        ({"classes": [{"names": ["n1", "n1"]}]}, "same name"),
        ({"classes": [{"count": 4}], "grid": "3x2"}, "grid"),
        ({"classes": [{"count": 4}], "partitions": [{"name": "a", "nodes": ["n5"]}]}, "partition a has node 'n5'"),
        ({"classes": [{"count": 4}], "partitions": [{"name": "a"}, {"name": "a"}]}, "two partitions"),
        ({"classes": [{"count": 4}], "partitions": [{"name": "a", "tier": -1}]}, "tier is -1"),
    ],
)
def test_an_invalid_machine_is_refused_with_the_reason(raw: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        Machine.from_json(raw, "m.yaml")
    assert caught.value.where == "m.yaml"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of each source, and a workload."""
    folder = tmp_path_factory.mktemp("machines")
    table = contended_workload().table
    workload = Workload(table, Provenance(System(4, 4)))
    write_workload(workload, folder / "w.parquet")
    write_workload(Workload(table, Provenance()), folder / "unknown.parquet")
    write_workload(workload, folder / "elastisim", "elastisim")
    (folder / "slurm.conf").write_text(CONF)
    (folder / "inventory.yaml").write_text("nodes:\n- {name: 'e[1-4]', cores: 4, sockets: 2, emulated: true}\n")
    (folder / "machine.yaml").write_text("# a machine\nclasses:\n- {count: 4, cores: 4}\n")
    (folder / "machine.json").write_text('{"classes": [{"names": ["n[1-4]"], "cores": 4}]}')
    return folder


@pytest.mark.parametrize(
    ("file", "nodes", "cores"),
    [
        ("w.parquet", 4, 4),
        ("elastisim/platform.xml", 4, 1),
        ("slurm.conf", 4, 8),
        ("inventory.yaml", 4, 4),
        ("machine.yaml", 4, 4),
        ("machine.json", 4, 4),
    ],
)
def test_a_source_is_recognized_by_its_content(files: Path, file: str, nodes: int, cores: int) -> None:
    machine = read_machine(files / file)
    assert (len(machine.nodes), max(node.cores for node in machine.nodes)) == (nodes, cores)
    assert machine.digest == read_machine(files / file).digest


@pytest.mark.parametrize("name", [path.name for path in sorted((ROOT / "inventory").glob("[emlv]*.yaml"))])
def test_the_shipped_inventories_are_machines(name: str) -> None:
    stem = name.removesuffix(".yaml")
    if stem != "mixed":  # its hosts are examples
        assert list(read_machine(stem).nodes) == tb.inventory(stem).facts


@pytest.mark.parametrize("name", ["cori-haswell-fulda", "cori-knl-fulda", "theta-fulda"])
def test_the_shipped_machines_are_found_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert name in tb.shipped_machines()
    machine = read_machine(name)
    assert machine == read_machine(ROOT / "inventory" / "machines" / f"{name}.yaml")
    assert Machine.from_json(machine.to_json()) == machine
    assert machine.sleep is not None
    assert (machine.sleep.rule, machine.sleep.share) == ("windows", 0.3)
    (tmp_path / name).write_text("classes: [{count: 2}]\n")
    assert len(read_machine(name).nodes) == 2  # a file of the user takes precedence
    with pytest.raises(InputError, match="unknown inventory"):
        tb.inventory(f"{name}-2")


def test_what_is_no_machine_is_refused(tmp_path: Path, files: Path) -> None:
    with pytest.raises(InputError, match="there is no such file, and no such inventory"):
        read_machine(tmp_path / "x.yaml")
    with pytest.raises(InputError, match="the machine has one file"):
        read_machine(files / "machine.yaml", files / "slurm.conf")
    with pytest.raises(InputError, match="number of nodes of the workload's system is unknown"):
        read_machine(files / "unknown.parquet")
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nSchedulerParameters=bf_interval=20\n")
    with pytest.raises(InputError, match="names no nodes"):
        read_machine(tmp_path / "slurm.conf")
    batsim = tmp_path / "batsim"
    write_workload(contended_workload(), batsim, "batsim")
    assert len(read_machine(batsim / "platform.xml").nodes) == 4  # and the host of its scheduler


HOST = """<host id="{name}" speed="100.0Mf, 50Mf, 1e-9Mf, 0.5f, 0.02f" pstate="{state}">
  <prop id="watt_per_state" value="95:96:190.5, 95:95:150, 9.75:9.75:9.75, 101:101:101, 125:125:125"/>
  <prop id="watt_off" value="10"/>{sleep}</host>"""
SLEEPS = '<prop id="sleep_pstates" value="2:3:4"/>'
MASTER = '<host id="master_host" speed="100Mf"/>'


def platform(folder: Path, *hosts: str) -> Path:
    path = folder / "batsim.xml"
    path.write_text(f'<?xml version=\'1.0\'?>\n<platform version="4"><AS id="AS0">{"".join(hosts)}</AS></platform>')
    return path


def test_the_platform_of_batsim_has_the_power_of_its_nodes(tmp_path: Path) -> None:
    hosts = [HOST.format(name=f"h{number}", state=number // 2, sleep=SLEEPS) for number in range(3)]
    machine = read_machine(platform(tmp_path, MASTER, *hosts, HOST.format(name="h3", state=0, sleep="")))
    power = NodePower(busy_w=190.5, idle_w=95, off_w=9.75, boot_w=125, boot_s=50, shutdown_w=101, shutdown_s=2)
    assert [(kind.names, kind.power) for kind in machine.classes] == [
        (("h0", "h1"), power),
        (("h2",), replace(power, busy_w=150)),
        (("h3",), NodePower(busy_w=190.5, idle_w=95, off_w=10)),
    ]
    clusters = platform(
        tmp_path,
        '<cluster id="c" radical="0-2,5" speed="1Gf"><prop id="wattage_per_state" value="100:200"/></cluster>',
        '<cluster id="m" radical="0-0" speed="1Gf"><prop id="role" value="master"/></cluster>',
    )
    assert read_machine(clusters).classes == (NodeClass(count=4, power=NodePower(busy_w=200, idle_w=100)),)


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("", "is not a platform with clusters or hosts"),
        (MASTER, "is not a platform with clusters or hosts"),
        ('<cluster id="c" radical="x"/>', "is not a platform with clusters or hosts"),
        ("<host", "is not XML"),
        ("<!-- <!ENTITY -->", "defines entities"),
        (HOST.format(name="h", state=9, sleep=""), "the power of 'h' is invalid"),
        (HOST.format(name="h", state=0, sleep='<prop id="sleep_pstates" value="2:3"/>'), "the power of 'h' is invalid"),
        (
            HOST.format(name="h", state=2, sleep="").replace("9.75:9.75:9.75", "9.75:9.75:-1"),
            "the power of 'h'.* busy_w",
        ),
        (HOST.format(name="h", state=0, sleep=SLEEPS).replace("0.02f", "slow"), "the power of 'h' is invalid: speed"),
        (HOST.format(name="h", state=0, sleep=SLEEPS).replace("0.02f", "0f"), "the power of 'h' is invalid"),
    ],
)
def test_a_damaged_platform_is_an_error(tmp_path: Path, host: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_machine(platform(tmp_path, host))


def test_the_general_part_of_the_machine_of_a_slurm_conf(files: Path) -> None:
    machine = read_machine(files / "slurm.conf")
    assert isinstance(machine, SlurmMachine)
    assert [(kind.names, kind.cores, kind.gres) for kind in machine.classes] == [
        (("n1", "n2", "n3"), 4, {}),
        (("g1",), 8, {"gpu": 2}),
    ]
    assert [(each.name, each.default, each.limit_s, each.shared) for each in machine.partitions] == [
        ("main", True, 3600.0, True),
        ("gpu", False, 0.0, True),
    ]
    assert not machine.plain
    assert machine.parameters == {"bf_interval": "20"}
    assert machine == read_machine(files / "slurm.conf")


def simulated(workload: Path, output: Path, *arguments: str) -> bytes:
    """Return the run.json of a simulation, and its tables, as bytes."""
    command = ["simulate", str(workload), *arguments, "-o", str(output)]
    result = CliRunner().invoke(tracebed, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    raw = json.loads((output / "run.json").read_text())
    raw.pop("created", None)
    return json.dumps(raw).encode() + b"".join(path.read_bytes() for path in sorted(output.glob("*.parquet")))


@pytest.mark.parametrize(
    ("machine", "short", "workload", "policy"),
    [
        ("machine.yaml", ["--nodes", "4", "--cores-per-node", "4"], "unknown.parquet", "easy"),
        ("w.parquet", [], "w.parquet", "pref"),
        ("inventory.yaml", ["--inventory", "inventory.yaml"], "w.parquet", "easy"),
        ("elastisim/platform.xml", ["--nodes", "4", "--cores-per-node", "1"], "unknown.parquet", "easy"),
        ("slurm.conf", ["-P", "@slurm.conf"], "unknown.parquet", "slurm"),
    ],
)
def test_a_machine_and_its_short_form_give_the_same_run(
    files: Path, tmp_path: Path, machine: str, short: list[str], workload: str, policy: str
) -> None:
    short = [f"@{files}/{word[1:]}" if word.startswith("@") else word for word in short]
    short = [str(files / word) if word.endswith(".yaml") else word for word in short]
    common = ["--policy", policy, *(["-P", "seed=3"] if policy == "slurm" else [])]
    one = simulated(files / workload, tmp_path / "a", *common, "--machine", str(files / machine))
    assert simulated(files / workload, tmp_path / "b", *common, *short) == one


def test_a_run_under_slurm_is_read_and_simulated_again(files: Path, tmp_path: Path) -> None:
    workload = tb.read(files / "w.parquet")
    run = tb.simulate(workload, "slurm", read_machine(files / "slurm.conf"), over_limit="kill")
    run.save(tmp_path / "run")
    info = Run.load(tmp_path / "run").info
    assert isinstance(info.machine, SlurmMachine) and info.machine.cluster.kinds[0].names == "n[1-3]"
    again = predict(workload, info.machine, info.setup)
    assert again.jobs.equals(run.jobs)
    assert again.info.setup == run.info.setup and again.info.machine == info.machine


def test_a_run_that_records_its_machine_in_parameters_of_the_policy_is_read(files: Path, tmp_path: Path) -> None:
    """As tracebed wrote it until November 2026."""
    run = tb.simulate(tb.read(files / "w.parquet"), "slurm", read_machine(files / "slurm.conf"))
    folder = run.save(tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    cluster = json.dumps(facts.pop("machine")["cluster"])
    parameters = facts["setup"]["scheduling"]["policy_parameters"]
    parameters |= {"cluster": cluster, "reservations": ""}
    (folder / "run.json").write_text(json.dumps(facts))
    info = Run.load(folder).info
    assert isinstance(info.machine, SlurmMachine) and info.machine.cluster == run.info.machine.cluster
    assert info.setup == run.info.setup
    parameters["cluster"] = "{"
    (folder / "run.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match="the cluster of the policy slurm is not JSON"):
        Run.load(folder)


def test_a_machine_with_partitions_is_simulated_under_slurm_and_each_other_policy(files: Path) -> None:
    machine = Machine(
        classes=(NodeClass(names=("n[1-3]",), cores=4), NodeClass(names=("g1",), cores=8, gres={"gpu": 2})),
        partitions=(Partition(name="main", nodes=("n[1-3]",), default=True, limit_s=3600.0, shared=True),),
    )
    workload = tb.read(files / "w.parquet")
    assert tb.simulate(workload, "slurm", machine).info.nodes == list(machine.nodes)
    assert tb.simulate(workload, "easy", machine).info.machine == machine
    with pytest.raises(InputError, match="both a machine and cores per node are given"):
        tb.simulate(workload, "easy", machine, cores_per_node=3)


def test_each_executor_has_the_shape_of_executors() -> None:
    shape = {"options", "predicts", "accepts", "execute"}
    assert {*EXECUTORS.names()} >= {"simulator", "slurm", "replay", "batch", "elastisim", "accasim"}
    assert [name for name, found in EXECUTORS.all() if not shape <= {*dir(found)}] == []


@dataclass(frozen=True, kw_only=True)
class LazyOptions(Options):
    """Its own options."""

    seed: int = 0


class Lazy:
    """The executor of a third party, on a machine of its own."""

    options = LazyOptions
    predicts = True

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        return len(machine.nodes) == 3

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: LazyOptions) -> Run:
        run = predict(workload, machine, setup, name=options.name)
        run.info.seed = options.seed
        return run


LAZY = Lazy()
MINE = MachineSource(
    "a list of hosts",
    recognizes=lambda path: path.suffix == ".hosts",
    read=lambda path: Machine(classes=(NodeClass(names=tuple(path.read_text().split()), cores=4),)),
)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, str], None]:
    """Return a function that installs an extension of another package."""

    def add(registry: Any, name: str, value: str) -> None:
        entry = EntryPoint(name, f"{__name__}:{value}", registry.group)
        monkeypatch.setitem(registry.entries, name, entry)

    return add


def test_a_source_and_an_executor_of_another_package(
    files: Path, tmp_path: Path, install: Callable[[Any, str, str], None]
) -> None:
    install(SOURCES, "hosts", "MINE")
    install(EXECUTORS, "lazy", "LAZY")
    (tmp_path / "three.hosts").write_text("a b c\n")
    machine, workload = read_machine(tmp_path / "three.hosts"), tb.read(files / "w.parquet")
    run = tb.simulate(workload, "easy", machine, simulator="lazy", name="mine", seed=5)
    assert [node.name for node in run.info.nodes] == ["a", "b", "c"]
    assert (run.info.workload["name"], run.info.seed) == ("mine", 5)
    for options, said in (
        ("", ""),
        (",seed=7", ""),
        (",seed=x", "option seed is 'x'"),
        (",sead=7", "did you mean seed"),
    ):
        words = [*("simulate", f"{files}/w.parquet", "--policy", "easy", "--machine", f"{tmp_path}/three.hosts")]
        result = CliRunner().invoke(tracebed, [*words, "--with", f"lazy{options}", "-o", f"{tmp_path}/lazy{options}"])
        assert (said in str(result.exception)) if said else result.exit_code == 0, result.output
    assert Run.load(tmp_path / "lazy,seed=7").info.seed == 7
    with pytest.raises(InputError, match="the executor lazy does not accept"):
        tb.simulate(workload, "easy", 4, simulator="lazy", name="mine")
    with pytest.raises(InputError, match="unknown executor 'lasy'"):
        execute(workload, machine, Setup.of("easy"), executor="lasy")
    with pytest.raises(InputError, match="does not accept"):
        execute(workload, machine, Setup.of("easy"), executor="replay")
    with pytest.raises(InputError, match="the executor replay replays jobs"):
        tb.simulate(workload, "easy", machine, simulator="replay")
    with pytest.raises(InputError, match=r"unknown simulator 'lasy' \(did you mean lazy\?"):
        tb.simulate(workload, "easy", machine, simulator="lasy")


def test_the_run_of_jobs_has_their_states_and_nodes(tmp_path: Path) -> None:
    rows = {"job_id": ["a", "b", "c"], "submit_time": [0.0, 1.0, 2.0], "run_time": 5.0, "nodes": [1, 2, 9]}
    jobs = Workload(pd.DataFrame(rows | {"user": "ann", "time_limit": [9.0, 3.0, 9.0]}))
    info = RunInfo("mine", "simulated", list(Machine(classes=(NodeClass(count=3),)).nodes), workload_facts(jobs, "w"))
    start, end = np.array([0.0, 1.0, np.nan]), np.array([5.0, 4.0, np.nan])
    run = run_of_jobs(jobs, info, start=start, end=end)
    assert run.jobs["state"].tolist() == ["completed", "completed", "rejected"]
    held = pd.DataFrame({"job_id": ["a", "b"], "node": [0, 1], "count": [1, 2], "start": start[:2], "end": end[:2]})
    states, reasons = [JobState.COMPLETED, JobState.KILLED, JobState.CANCELLED], ["", "time limit", "by its user"]
    run = run_of_jobs(jobs, info, start=start, end=end, state=states, reason=reasons, allocations=held.assign(cores=1))
    again = Run.load(run.save(tmp_path / "run"))
    assert again.info.counts == {"jobs": 3, "completed": 1, "killed": 1, "cancelled": 1}
    columns = ["job_id", "submit_planned", "submit", "end", "state", "reason", "nodes", "user", "time_limit"]
    assert again.jobs[columns].to_numpy().tolist()[1] == ["b", 1, 1, 4, "killed", "time limit", 2, "ann", 3]
    assert tb.Run.of(again).metrics()["utilization"] > 0


PAGE = ROOT / "docs/reference/machines.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of the installed package of the page, and a folder with what its commands read."""
    files = packages.files_of(PAGE)
    package = {name: files[name] for name in ("machine.yaml", "hosts.py", "unlimited.py", "pyproject.toml")}
    folder = tmp_path_factory.mktemp("documented")
    site = packages.install(folder / "unlimited", package)
    (folder / "my.hosts").write_text("#hosts\na\nb\nc\n")
    write_workload(contended_workload(3), folder / "w.parquet")
    return site, folder


def test_the_source_and_the_executor_of_the_page_run_in_python(documented: tuple[Path, Path]) -> None:
    site, folder = documented
    script = next(text for text in PROGRAMS if text.startswith("import tracebed.api") and "unlimited" in text)
    more = 'run.save("saved"); print(*run.info.nodes[0], *set(run.jobs["start"] - run.jobs["submit"]))'
    done = packages.python(site, f"{script}\n{more}", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "a 16 1 5.0"
    run = tb.Run.load(folder / "saved")
    assert (run.info.source, run.info.parameters, run.info.policy) == ("unlimited", {"delay_s": 5}, "easy")
    assert run.metrics()["undefined"]["utilization"] == "the jobs have no nodes of their own"


def test_the_source_and_the_executor_of_the_page_run_as_a_command(documented: tuple[Path, Path]) -> None:
    site, folder = documented
    (line,) = re.findall(r"^    tracebed (simulate .* --with unlimited,.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    done = packages.tracebed(site, *line.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    info = tb.Run.load(folder / "runs/unlimited").info
    assert (info.source, info.parameters) == ("unlimited", {"delay_s": 5})


def test_the_checks_of_the_page_pass(documented: tuple[Path, Path]) -> None:
    site, folder = documented
    (tests,) = re.findall(
        r"^```python\n(from pathlib[^`]*def test_.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    (folder / "checks").mkdir()
    code = f"{tests}\ntest_hosts(Path('checks'))\ntest_unlimited()"
    done = packages.python(site, code, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_a_replay_is_an_execution(files: Path, tmp_path: Path) -> None:
    from tracebed.orchestrator.replay.session import ReplayOptions

    workload, machine = tb.read(files / "w.parquet"), read_machine("virtual")
    run = execute(
        workload, machine, Setup.of("easy", speed=1e5), ReplayOptions(output=tmp_path / "r"), executor="replay"
    )
    assert (run.info.source, run.info.counts["jobs"]) == ("virtual", len(workload))
