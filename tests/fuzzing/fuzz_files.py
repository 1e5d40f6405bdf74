"""Valid files of every kind that the command line reads, and the commands that read them, for the fuzzing harness."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.converters.test_batsim import VALID as BATSIM
from tests.converters.test_cori import CORI, CORI_ROWS, EAGLE, EAGLE_ROWS
from tests.converters.test_pbs import LOG as PBS
from tests.converters.test_sacct import LATE
from tests.converters.test_theta import HEADER
from tests.converters.test_theta import ROWS as THETA_ROWS
from tests.converters.test_workload_formats import EXAMPLES
from tests.simulators.test_import_simulators import FIVE, FOUR, batsim
from tests.simulators.test_simulate_elastisim import FILES as ELASTISIM

Call = Callable[[Path, list[str]], int]


class Case(NamedTuple):
    """A command and the file that is mutated before the command runs, relative to the folder of the files."""

    kind: str
    file: str
    command: list[str]


REAL, SIM = "suite/real/cirne-easy", "sim"
RUNS = ["run.json", "jobs.parquet", "allocations.parquet", "reconfigurations.parquet", "nodes.parquet"]
TOML = 'quiet = false\n\n[simulate]\npolicy = "easy"\nnodes = 4\nspeed = 100.0\n\n[generate.cirne]\nnodes = 16\n'
SLURM = """# slurm.conf
ClusterName=x
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=30,bf_window=1440,bf_max_job_test=500,bf_continue
PriorityType=priority/basic
NodeName=n[1-4] CPUs=4
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
ANSIBLE = """{
 "_meta": {"hostvars": {
  "n1": {"tracebed_cores": 4, "ansible_host": "127.0.0.1"},
  "n2": {"tracebed_cores": 2}
 }},
 "all": {"children": ["ungrouped", "nodes"]},
 "nodes": {"hosts": ["n1", "n2"]}
}
"""
SSH = "Host n1 n2\n  HostName 127.0.0.1\n  Port 2201\n  User me\nHost n3\n  HostName ::1\n  IdentityFile ~/.ssh/id\n"
STUDY = """workloads:
  mine: {file: suite/workloads/cirne.csv, nodes: 4}
policies: [easy, {policy: pref, parameters: {count_idle: false}}]
seeds: 1
"""
REAL_CELLS = """workloads: {small: small.csv}
policies: [pref]
testbeds:
  one: {inventory: emulated-4, speed: 20000}
  two: {inventory: emulated-4, speed: 30000, repetitions: 1}
repetitions: 2
seed: 3
settle_s: 0
"""
SUITE = """workloads: {cirne: workloads/cirne.csv}
policies: [easy]
recorded: "real/{workload}-{policy}/rep-*"
simulators:
  tracebed: {calibration: calibration.yaml}
"""
COMMANDS = "commands:\n  solver:\n    arguments: [/opt/solve, --input]\n    environment: {A: b}\n    folder: /scratch\n"
TOLERANCES = "mean_wait: 15%\nmakespan: 3%, 60 s\n"


def prepare(folder: Path, call: Call) -> list[Case]:
    """Write the files into `folder`, and return the cases. `call` runs a command in a folder."""

    def done(words: str, *allowed: int) -> None:
        status = call(folder, words.split())
        assert status in (0, *allowed), f"{words}: status {status}"

    cases = []

    def case(kind: str, file: str, words: str) -> None:
        assert (folder / file).is_file(), file
        cases.append(Case(kind, file, words.split()))

    (folder / "logs").mkdir(parents=True)
    examples = EXAMPLES | {
        "cori": ["\n".join([CORI, *CORI_ROWS]).encode()],
        "eagle": ["\n".join([EAGLE, *EAGLE_ROWS]).encode()],
        "theta": ["\n".join([HEADER, *THETA_ROWS]).encode()],
        "sacct": [LATE.encode()],
        "pbs": ["\n".join(PBS).encode()],
        "batsim": [BATSIM],
    }
    for name, contents in examples.items():
        for number, content in enumerate(contents):
            suffix = ".parquet" if content.startswith(b"PAR1") else ".json" if content.startswith(b"{") else ""
            log = f"logs/{name}-{number}{suffix}"
            (folder / log).write_bytes(content)
            case(f"log {name}", log, f"convert {log} --from {name} -o out/w.csv")
    done("validate --recorded emulated -o suite")
    for real in (folder / "suite/real").iterdir():
        if real.name != "cirne-easy":
            shutil.rmtree(real)
    (folder / "suite/suite.yaml").write_text(SUITE)
    workload, speed = "suite/workloads/cirne.csv", "--nodes 4 --speed 500"
    for suffix in ("csv", "swf", "parquet", "csv.gz", "swf.zst"):
        done(f"convert {workload} -o w.{suffix}")
        for words in ("describe w.{}", "scale w.{} --nodes 2 -o out/s.parquet", "convert w.{} -o out/c.swf"):
            case(f"workload {suffix}", f"w.{suffix}", words.format(suffix))
    (folder / "small.csv").write_text("".join((folder / workload).read_text().splitlines(True)[:5]))
    (folder / "logs/raw.swf").write_text((folder / "w.swf").read_text())
    done("clean --recipe ricc-sept --show", 2)
    recipe = Path(__file__).parents[2] / "converters/tracebed/converters/recipes"
    for name in ("ricc-sept", "sacct", "eagle"):
        content = re.sub(r"first: \d+, last: \d+", "first: 1, last: 25", (recipe / f"{name}.yaml").read_text())
        (folder / f"{name}.yaml").write_text(content)
        case(
            "recipe", f"{name}.yaml", f"clean logs/raw.swf --recipe {name}.yaml --by node --system 4x1 -o out/clean.swf"
        )

    done(f"simulate {workload} --policy easy {speed} -o sim")
    done(f"simulate {workload} --policy easy {speed} --perturb 3 -o perturbed")
    done(
        "validate suite/suite.yaml --no-case-pages -o out-suite --baseline baseline.yaml --update-baseline better", 1, 3
    )
    done(f"metrics {REAL} --noise noise.yaml")
    done("replay small.csv --policy pref --inventory emulated-4 --speed 20000 -o replayed", 4)
    for name in RUNS:
        for run in ("sim", f"{REAL}/rep-01", "replayed"):
            case(f"run {name}", f"{run}/{name}", f"metrics {run} --json")
        case(f"run {name}", f"{SIM}/{name}", f"compare --real {REAL} --predicted {SIM} --report out/r.html --json")
        case(f"run {name}", f"{REAL}/rep-02/{name}", f"compare --real {REAL} --predicted {SIM}")
        for form, end in (("csv", "csv"), ("evalys", "csv"), ("perfetto", "json"), ("swf", "swf")):
            case(f"run {name}", f"replayed/{name}", f"export replayed --to {form} -o out/x.{end}")
        case(f"run {name}", f"replayed/{name}", "explain small.csv --real replayed")
        case(f"run {name}", f"{REAL}/rep-03/{name}", f"metrics {REAL} --noise out/noise.yaml")
        case(f"run {name}", f"replayed/{name}", "watch replayed --interval 0")
    case("perturbed", "perturbed/perturbed.csv", f"compare --real {REAL} --predicted perturbed")
    case("perturbed", "perturbed/perturbed.csv", "metrics perturbed")

    left = folder / "left.partial-00000001"
    left.mkdir()
    shutil.copy(folder / "replayed/journal.sqlite", left)
    (left / "tracebed-replay.json").write_text(json.dumps({"schema": "tracebed-replay/1", "output": "left"}) + "\n")
    for _ in range(3):
        case("journal", f"{left.name}/journal.sqlite", f"replay --recover {left.name} -o out/recovered")
    case("journal", "replayed/journal.sqlite", "explain small.csv --real replayed")
    case("journal", f"{left.name}/tracebed-replay.json", f"replay --recover {left.name} -o out/recovered")
    case("journal", f"{left.name}/journal.sqlite", f"watch {left.name} --interval 0")

    (folder / "real.yaml").write_text(REAL_CELLS)
    done("experiment real.yaml -o camp", 4)
    case("experiment", "real.yaml", "experiment real.yaml -o out/camp")
    for words in (
        "experiment real.yaml -o camp --dry-run",
        "experiment real.yaml -o camp",
        "metrics camp --noise out/noise.yaml",
    ):
        for name in ("campaign.json", "repetitions.jsonl"):
            case("experiment", f"camp/real/{name}", words)

    for file in ("suite/suite.yaml", "suite/calibration.yaml", "suite/workloads/cirne.csv"):
        case("suite", file, "validate suite/suite.yaml --no-case-pages -o out/suite")
    for path in sorted((folder / "out-suite").rglob("*.json"))[:6]:
        case("suite", str(path.relative_to(folder)), "validate suite/suite.yaml --no-case-pages -o out-suite")
    (folder / "study.yaml").write_text(STUDY)
    done("experiment study.yaml --workers 1 -o swept")
    case("experiment", "study.yaml", "experiment study.yaml --workers 1 -o out/swept")
    case("experiment", "study.yaml", "experiment study.yaml --dry-run")
    for path in sorted((folder / "swept/cells").iterdir())[:4]:
        case("experiment", f"swept/cells/{path.name}", "experiment study.yaml --workers 1 -o swept")

    shutil.copy(
        Path(__file__).parents[2] / "validation/tracebed/validation/verdict/tolerances.yaml", folder / "tol.yaml"
    )
    compare = f"compare --real {REAL} --predicted {SIM}"
    for _ in range(2):
        case("tolerances", "tol.yaml", f"{compare} --tolerances tol.yaml")
        validate = "validate suite/suite.yaml --no-case-pages -o out-suite --baseline baseline.yaml"
        case("baseline", "baseline.yaml", validate)
        case("baseline", "baseline.yaml", f"{validate} --update-baseline any")
        case("noise", "noise.yaml", f"{compare} --noise noise.yaml")
        case(
            "calibration",
            "suite/calibration.yaml",
            f"simulate {workload} --policy easy {speed} --calibration suite/calibration.yaml -o out/sim",
        )
    (folder / "conf.toml").write_text(TOML)
    case("configuration", "conf.toml", f"--config conf.toml simulate {workload} -o out/sim")
    (folder / "slurm.conf").write_text(SLURM)
    case("slurm.conf", "slurm.conf", f"simulate {workload} --policy slurm -P @slurm.conf {speed} -o out/sim")
    inventory = Path(__file__).parents[2] / "inventory/emulated-4.yaml"
    shutil.copy(inventory, folder / "inv.yaml")
    (folder / "ansible.json").write_text(ANSIBLE)
    (folder / "ssh_config").write_text(SSH)
    for name in ("inv.yaml", "ansible.json"):
        case("inventory", name, f"simulate {workload} --policy easy --inventory {name} -o out/sim")
    for name in ("inv.yaml", "ansible.json", "ssh_config"):  # ssh_config has no cores, which a simulation needs
        case("inventory", name, f"read inventory {name}")
    (folder / "ids.csv").write_text("".join(f"{n} {n}\n" for n in range(1, 4)))
    (folder / "batsim4").mkdir()
    (folder / "batsim5").mkdir()
    for name, header in (("batsim4", FOUR), ("batsim5", FIVE)):
        batsim(folder / name, header)
        for path in sorted((folder / name).iterdir()):
            case(
                "simulator batsim", f"{name}/{path.name}", f"import {name}/out_jobs.csv --as real --nodes 2 -o out/run"
            )
    (folder / "elastisim").mkdir()
    for name, text in ELASTISIM.items():
        (folder / "elastisim" / name).write_text(text)
    for name in ELASTISIM:
        case("simulator elastisim", f"elastisim/{name}", "import elastisim/job_statistics.csv --as real -o out/run")
    done(f"export {SIM} --to csv -o table.csv")
    for words in ("--as real --nodes 4", f"--as predicted --workload {workload}"):
        case("table", "table.csv", f"import table.csv {words} -o out/run")
    (folder / "map.txt").write_text("".join(f"{row},{row}\n" for row in ids_of(folder / workload)))
    case("map", "map.txt", f"import table.csv --as predicted --workload {workload} --match map.txt -o out/run")
    (folder / "health.yaml").write_text(
        (Path(__file__).parents[2] / "orchestrator/tracebed/orchestrator/replay/health.yaml").read_text()
    )
    (folder / "commands.yaml").write_text(COMMANDS)
    (folder / "nodes.yaml").write_text(
        (Path(__file__).parents[2] / "orchestrator/tracebed/orchestrator/testbeds/checking/health.yaml").read_text()
    )
    case("health", "health.yaml", "read thresholds health.yaml")
    case("health", "nodes.yaml", "read limits nodes.yaml")
    case("commands", "commands.yaml", "read commands commands.yaml")
    return cases


def ids_of(workload: Path) -> list[str]:
    """Return the ids of the jobs of a CSV workload."""
    rows = [line.replace('"', "").split(",") for line in workload.read_text().splitlines() if line[0] != "#"]
    at = rows[0].index("job_id")
    return [row[at] for row in rows[1:]]


def read(what: str, path: Path) -> None:
    """Read a file that only commands on real nodes read."""
    from tracebed.orchestrator.replay.programs import AllowedCommands
    from tracebed.orchestrator.replay.thresholds import HealthThresholds
    from tracebed.orchestrator.testbeds.checking.health import read_limits
    from tracebed.orchestrator.testbeds.inventory import load_inventory

    inventory = partial(load_inventory, facts_follow=True)
    {
        "inventory": inventory,
        "thresholds": HealthThresholds.read,
        "limits": read_limits,
        "commands": AllowedCommands.read,
    }[what](path)
