"""Rules of the code base: allowed imports, light start-up, required docstrings, and links of the documentation."""

from __future__ import annotations

import ast
import configparser
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tracebed.cli import COMMANDS, tracebed

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("converters", "benchmarks", "orchestrator", "validation")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
BUILD_HOOK = ROOT / "hatch_build.py"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]

WINGS = {"slurm", "oar", "operators", "studies", "drivers"}
"""Parts for one audience each. The core imports none of them; they arrive by entry points, as a plug-in would."""
# part -> other parts it may import
STANDS_ON = {
    "ground": set(),
    "converters": {"ground"},
    "machine": {"ground", "converters"},
    "malleable": {"ground", "benchmarks"},
    "benchmarks": {"ground", "malleable"},
    "orchestrator": {"ground", "converters", "benchmarks", "machine"},
    "validation": {"ground", "converters", "machine", "orchestrator"},
    # The Python interface, the checks for extensions and the command line are the top layer.
    "api": {"ground", "converters", "benchmarks", "machine", "orchestrator", "validation"},
    "testing": {"ground", "converters", "benchmarks", "machine", "orchestrator", "validation", "api"},
    "cli": {"ground", "api"},
    "slurm": {"ground", "converters", "benchmarks", "machine", "orchestrator"},
    "oar": {"ground", "converters", "machine", "orchestrator"},
    "drivers": {"ground", "converters", "machine", "orchestrator", "validation"},
    "operators": {"ground", "converters", "machine", "orchestrator", "validation", "api", "cli", "slurm"},
    "studies": {"ground", "converters", "benchmarks", "machine", "orchestrator", "validation"},
}
CLI = "tracebed.cli"
ORCHESTRATOR = "tracebed.orchestrator"
# package of the orchestrator -> its sibling packages that it may not import
APART = {
    "run": {"scheduling", "simulation", "replay", "testbeds", "calibrating", "tables", "watching"},
    "runs": {
        *("run", "scheduling", "simulation", "replay", "testbeds", "calibrating", "tables", "watching"),
    },
    "tables": {"simulation", "replay", "testbeds"},
    "scheduling": {"simulation", "replay", "testbeds", "calibrating", "run", "tables"},
    "evolving": {"run", "simulation", "replay", "testbeds", "calibrating", "tables", "watching"},
    "simulation": {"replay", "testbeds", "calibrating", "watching"},
    "replay": {"replay.batch", "simulation", "calibrating", "watching"},
    "testbeds": {"scheduling", "simulation", "replay", "calibrating", "watching"},
    "calibrating": {"replay.batch", "simulation", "watching"},
    "replay.batch": {"simulation", "calibrating", "tables", "watching"},
    "watching": {"simulation", "testbeds", "calibrating"},
}
SLURM = "tracebed.slurm"
# reader of what Slurm writes -> packages of the orchestrator that it may not import
SLURM_READERS = {
    name: {"simulation", "replay", "testbeds", "calibrating", "tables", "watching"}
    for name in (
        *("changes", "conf", "conf_keys", "conf_lines", "database", "gres", "job_fields", "machine"),
        *("events", "reservations", "scontrol", "state", "topology", "values"),
    )
}
VALIDATION = "tracebed.validation"
# package of validation -> its sibling packages that it may not import: simulators make runs, the others judge them
JUDGES = {"budget", "experiments", "fitting", "metrics", "report", "verdict"}
VALIDATION_APART = {
    "simulators": JUDGES,
    **{room: {"simulators"} for room in ("budget", "fitting", "metrics", "report", "verdict")},
}
PURE_ROOMS = ("orchestrator.scheduling", "slurm.simulation.inputs", "slurm.simulation.resources")
PURE_ROOMS += ("slurm.simulation.start_conditions",)
OUTSIDE_OF_DECISIONS = {"pandas", "pyarrow", "tracebed.ground.cpus", "tracebed.ground.files", "time", "datetime", "os"}
# package -> external modules that it may not import, since its decisions are pure
PURE = {
    **{f"tracebed.{room}": OUTSIDE_OF_DECISIONS | {"pathlib"} for room in PURE_ROOMS},
    f"{ORCHESTRATOR}.evolving": OUTSIDE_OF_DECISIONS,
}
LIGHT = (CLI, *(f"tracebed.api.{name}" for name in ("PRIORITIES", "SETTINGS", "SETUP_PARTS", "TYPES")))
"""What a command may import before it runs. `test_help_loads_nothing_heavy` shows what they load."""
HEAVY = {
    "distributed",
    "fabric",
    "numpy",
    "pandas",
    "paramiko",
    "scipy",
    "matplotlib",
    "mpi4py",
    "pyarrow",
    "pydantic",
    "rich",
    "jinja2",
    "yaml",
    "psutil",
}


@dataclass(frozen=True)
class Import:
    """An import statement, or a string that names a tracebed module for a later import."""

    module: str
    line: int
    lazy: bool
    """Inside a function, under `if TYPE_CHECKING`, or by name: not done when the file is imported."""


def name_of(path: Path, root: Path = ROOT) -> str:
    """Return the module's name: tracebed.orchestrator.run for orchestrator/tracebed/orchestrator/run.py."""
    parts = path.relative_to(root).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path, root: Path) -> tuple[Import, ...]:
    """Return the imports of a file; `from a import b` counts as a.b, since b may be a module."""
    package = name_of(path, root).split(".")
    if path.name != "__init__.py":
        package = package[:-1]

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(f"{base}.{alias.name}", node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"tracebed(\.\w+)+(:\w+)?", node.value):
                yield Import(node.value.partition(":")[0], node.lineno, True)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                yield from visit(statement, True)
            for statement in node.orelse:
                yield from visit(statement, lazy)
        else:
            inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inside)

    return tuple(visit(ast.parse(path.read_text(encoding="utf-8")), False))


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def part_of(module: str) -> str | None:
    """Return the part of tracebed that a module belongs to, or None for external modules."""
    top, _, rest = module.partition(".")
    part = rest.partition(".")[0]
    return part if top == "tracebed" and part in STANDS_ON else None


def offences(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Return the imports of a file that break the rules, one line each."""
    module = name_of(path, root)
    part = part_of(module)
    for found in imports(path, root):
        where = f"{path.relative_to(root)}:{found.line}: {found.module}"
        target = part_of(found.module)
        for room, others in PURE.items():
            if is_in(module, room) and any(is_in(found.module, other) for other in others):
                yield f"{where}: {room} is pure and may not import this"
        if part is None or target is None:
            light = found.module.partition(".")[0] in {"click", *sys.stdlib_module_names}
            if is_in(module, CLI) and not found.lazy and not light:
                yield f"{where}: a command's module imports this inside the functions that need it"
            continue
        if target != part and target not in STANDS_ON[part]:
            yield f"{where}: {part} may import {', '.join(sorted(STANDS_ON[part])) or 'no other part'} only"
        for home, apart, there in (
            (ORCHESTRATOR, APART, ORCHESTRATOR),
            (SLURM, SLURM_READERS, ORCHESTRATOR),
            (VALIDATION, VALIDATION_APART, VALIDATION),
        ):
            for room, others in apart.items():
                for other in others:
                    inside = is_in(module, f"{home}.{room}") and not is_in(module, f"{there}.{other}")
                    if inside and is_in(found.module, f"{there}.{other}"):
                        yield f"{where}: {room}/ may not import {other}"
        lazy_names = found.module == "tracebed.api"  # each is imported when it is used
        light = lazy_names or any(is_in(found.module, each) for each in LIGHT) or part_of(found.module) == "ground"
        if is_in(module, CLI) and not found.lazy and not light:
            yield f"{where}: a command's module imports this inside the functions that need it"


def test_the_command_line_uses_the_public_names_of_the_api_only() -> None:
    used: set[str] = set()
    for path in SOURCES:
        if is_in(name_of(path), CLI):
            used |= {found.module for found in imports(path, ROOT) if is_in(found.module, "tracebed.api")}
            used |= {f"tracebed.api.{name}" for name in re.findall(r"\btb\.(\w+)", path.read_text(encoding="utf-8"))}
    assert "tracebed.api.simulate" in used
    assert used - {"tracebed.api", *(f"tracebed.api.{name}" for name in tb.__all__)} == set()


def test_the_parts_are_portions_of_one_namespace() -> None:
    assert {part_of(name_of(path)) for path in SOURCES} >= {*PARTS, *WINGS, "ground"}
    assert [path for path in SOURCES if path.parent.name == "tracebed" and path.name == "__init__.py"] == []


def test_imports_run_one_way() -> None:
    assert [offence for path in SOURCES for offence in offences(path)] == []


@pytest.mark.parametrize(
    ("place", "line", "allowed"),
    [
        ("converters/tracebed/converters/x.py", "import tracebed.benchmarks.pils", False),
        ("converters/tracebed/converters/x.py", "from tracebed import benchmarks, errors", False),
        ("converters/tracebed/converters/x.py", "from tracebed.ground.errors import InputError", True),
        ("converters/tracebed/ground/errors.py", "from tracebed.converters import workload", False),
        ("benchmarks/tracebed/benchmarks/x.py", "def f(): import tracebed.orchestrator.run", False),
        ("orchestrator/tracebed/orchestrator/x.py", "from ..validation import metrics", False),
        ("orchestrator/tracebed/orchestrator/x.py", "f('tracebed.validation.metrics:of')", False),
        ("orchestrator/tracebed/orchestrator/scheduling/x.py", "from ..testbeds import inventory", False),
        ("orchestrator/tracebed/orchestrator/scheduling/x.py", "import pandas as pd", False),
        ("orchestrator/tracebed/orchestrator/scheduling/x.py", "from tracebed.ground.cpus import format_cpus", False),
        ("orchestrator/tracebed/orchestrator/scheduling/x.py", "import numpy as np", True),
        ("orchestrator/tracebed/orchestrator/run.py", "from tracebed.orchestrator.scheduling.jobs import Jobs", False),
        ("orchestrator/tracebed/orchestrator/testbeds/x.py", "from tracebed.orchestrator import run", True),
        ("orchestrator/tracebed/slurm/simulation/resources.py", "import os", False),
        ("orchestrator/tracebed/slurm/conf.py", "from tracebed.orchestrator import replay", False),
        ("orchestrator/tracebed/slurm/provider.py", "from tracebed.orchestrator import testbeds", True),
        ("orchestrator/tracebed/orchestrator/testbeds/x.py", "import tracebed.slurm", False),
        ("validation/tracebed/validation/experiments/x.py", "from tracebed.studies import ledger", False),
        ("validation/tracebed/validation/x.py", "def f(): import tracebed.cli", False),
        ("validation/tracebed/cli/x.py", "import pandas as pd", False),
        ("validation/tracebed/cli/x.py", "import click, json", True),
        ("validation/tracebed/cli/x.py", "try: import rich\nexcept ImportError: ...", False),
        ("validation/tracebed/cli/x.py", "from tracebed.validation import verdict", False),
        ("validation/tracebed/cli/x.py", "def f(): import tracebed.validation.verdict", False),
        ("validation/tracebed/cli/x.py", "if TYPE_CHECKING: import tracebed.validation", False),
        ("validation/tracebed/cli/x.py", "if TYPE_CHECKING: import tracebed.api", True),
        ("orchestrator/tracebed/orchestrator/x.py", "def f(): import tracebed.api", False),
        ("orchestrator/tracebed/orchestrator/x.py", "def f(): import tracebed.cli", False),
        ("validation/tracebed/validation/x.py", "from tracebed.orchestrator.run import Run", True),
        ("validation/tracebed/validation/x.py", "from tracebed.benchmarks import pils", False),
        ("validation/tracebed/validation/x.py", "import tracebed.api", False),
        ("validation/tracebed/validation/simulators/x.py", "from tracebed.validation.verdict import rule", False),
        ("validation/tracebed/validation/simulators/x.py", "from tracebed.orchestrator.run import Run", True),
        ("validation/tracebed/validation/verdict/x.py", "from tracebed.validation import simulators", False),
        ("orchestrator/tracebed/orchestrator/run.py", "def f(): from tracebed.testing import check_policy", False),
        ("validation/tracebed/cli/x.py", "def f(): import tracebed.api", True),
        ("validation/tracebed/cli/x.py", "import tracebed.api", True),
        ("validation/tracebed/cli/x.py", "from tracebed.api import simulate", False),
        ("validation/tracebed/cli/x.py", "def f(): import tracebed.operators.commands", False),
        ("validation/tracebed/api/x.py", "f('tracebed.operators.interface:whatif')", False),
        ("validation/tracebed/operators/x.py", "from tracebed.cli import console", True),
        ("validation/tracebed/api/x.py", "from tracebed.validation import verdict", True),
        ("validation/tracebed/api/x.py", "import tracebed.testing", False),
        ("validation/tracebed/validation/x.py", "from tracebed.cli import console", False),
    ],
)
def test_the_import_rules_detect_violations(place: str, line: str, allowed: bool, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert (list(offences(path, tmp_path)) == []) is allowed


def cycles(paths: list[Path], root: Path = ROOT) -> list[tuple[str, ...]]:
    """Return the sets of modules that import each other, lazily or not, directly or indirectly."""
    modules = {name_of(path, root): path for path in paths}
    graph = {
        name: {module_of(found.module, modules) for found in imports(path, root)} - {name, None}
        for name, path in modules.items()
    }

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    reached = {name: reachable(name) for name in graph}
    return sorted(
        {
            tuple(sorted(other for other in reached[name] if name in reached[other]))
            for name in graph
            if name in reached[name]
        }
    )


def module_of(name: str, modules: Collection[str]) -> str | None:
    """Return the module among `modules` that `name`, a module or a name in it, belongs to."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def test_no_modules_import_each_other() -> None:
    assert cycles(SOURCES) == []


@pytest.mark.parametrize(
    ("texts", "circle"),
    [
        ({"x": "from tracebed.converters import y", "y": "import tracebed.ground.errors"}, False),
        ({"x": "from tracebed.converters import y", "y": "from .x import f"}, True),
        ({"x": "from tracebed.converters import y", "y": "def f(): import tracebed.converters.x"}, True),
        ({"x": "f('tracebed.converters.y:g')", "y": "from . import z", "z": "if TYPE_CHECKING: from . import x"}, True),
    ],
)
def test_the_search_for_cycles_detects_cycles(texts: dict[str, str], circle: bool, tmp_path: Path) -> None:
    paths = [tmp_path / "converters/tracebed/converters" / f"{name}.py" for name in texts]
    paths[0].parent.mkdir(parents=True)
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    found = cycles(paths, tmp_path)
    assert found == ([tuple(name_of(path, tmp_path) for path in paths)] if circle else [])


def test_headers_in_c_form_no_circle() -> None:
    """C needs a function before its use, so headers whose functions are declared once, with a body, form no circle."""
    headers = [path for part in PARTS for path in (ROOT / part).rglob("*.h") if "static " in path.read_text()]
    declared = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in headers
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r"static [^={]*\);", line)
    ]
    assert len(headers) > 10
    assert declared == []


def test_dependencies_are_declared_used_and_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    optional = [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
    requirements = [*project["project"]["dependencies"], *optional, *project["build-system"]["requires"]]
    declared = {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}
    used = {found.module.partition(".")[0] for path in SOURCES for found in imports(path, ROOT)}
    used |= {word for word in ("hatchling",) if f"from {word}." in BUILD_HOOK.read_text(encoding="utf-8")}
    used |= {"mpich"} if "mpi4py" in used else set()  # the library that mpi4py loads
    packages = {"yaml": "pyyaml", "zmq": "pyzmq"}  # of modules with another name
    used = {packages.get(name, name) for name in used - {"tracebed", *sys.stdlib_module_names}}
    assert used == declared
    explained = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = re.sub(r"(?s)^## (In the wheel|Judged).*?(?=^## )", "", explained, flags=re.MULTILINE)  # not used
    rows = {name for row in re.findall(r"^\| ([^|]+) \|", explained, re.MULTILINE) for name in row.split(", ")}
    environments = configparser.ConfigParser(interpolation=None)
    environments.read(ROOT / "tox.ini", encoding="utf-8")
    lines = [line for section in environments.values() for line in section.get("deps", "").splitlines()]
    tools = {re.split(r"[^\w.-]", line)[0] for line in lines if line and not line.startswith("{")}
    assert rows - {"Package"} == declared | tools | {"tox"}


def test_lines_of_pages_have_at_most_120_characters() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in PAGES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120 and not line.startswith("|")  # a row of a table cannot be wrapped
    ]
    assert long == []


def test_links_of_pages_lead_to_files() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
        if not target.startswith("http") and not (path.parent / target).exists()
    ]
    assert broken == []


PAGE = re.compile(r"docs/[\w/-]*\.md")


def test_help_and_messages_point_to_no_page() -> None:
    """The wheel does not contain docs/, so help and messages name commands instead."""
    found = []
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if PAGE.search(source) else ():
            text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            documentation = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if documentation and not is_in(name_of(path), CLI):
                node.value.value = ""  # docstrings are read with the source
            elif text and PAGE.search(node.value):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


ON_NODE = ROOT / "orchestrator/tracebed/orchestrator/testbeds/on_node.py"
"""A program that runs on nodes on which tracebed is not installed yet."""
IN_THE_WORLD = [
    *sorted((ROOT / "orchestrator").rglob("*.py")),
    *(ROOT / "benchmarks/tracebed/benchmarks" / f"{name}.py" for name in ("lines", "clock", "drom", "node_table")),
    ROOT / "converters/tracebed/ground/files.py",
]
"""The controller, the agents, and what ranks share with them. The rest of a rank is a model in the virtual testbed."""
OUTSIDE = {
    "time": {"monotonic", "monotonic_ns", "perf_counter", "process_time", "sleep", "time", "time_ns"},
    "os": {"eventfd", "getrandom", "urandom"},
    "random": None,
    "secrets": None,
    "uuid": None,
}
"""Module -> names that only `tracebed.ground.system` uses; None: all."""
CORE = ("replay/", "testbeds/link.py", "testbeds/links.py", "testbeds/launcher.py", "testbeds/testbed.py")
"""The modules of the orchestrator that start no thread by themselves. Providers may: they have their own libraries."""


def around_the_world(path: Path) -> list[str]:
    """Return what a module uses of the world without `tracebed.ground.system`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[tuple[str, str]] = []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [(node.value.id, node.attr)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        core = any(part in path.as_posix().removeprefix(ROOT.as_posix()) for part in CORE)
        for module, name in names:
            forbidden = OUTSIDE.get(module, set())
            if forbidden is None or name in forbidden or (core and (module, name) in THREADS):
                found.append(f"{path.name}:{node.lineno}: {module}.{name}".rstrip("."))
    return found


THREADS = {("threading", "Thread"), ("threading", "Timer"), ("concurrent.futures", "ThreadPoolExecutor")}


def test_the_controller_and_its_agents_reach_the_world_by_one_module() -> None:
    """Otherwise, the virtual testbed would not test what is shipped."""
    assert [use for path in IN_THE_WORLD if path != ON_NODE for use in around_the_world(path)] == []


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("import time\ntime.sleep(1)", "time.sleep"),
        ("from time import monotonic", "time.monotonic"),
        ("import random", "random"),
        ("import os\nos.urandom(4)", "os.urandom"),
        ("import time\ntime.clock_gettime(7)", ""),
    ],
)
def test_a_way_around_the_world_is_found(line: str, use: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(f"{line}\n")
    assert [found.split(": ")[1] for found in around_the_world(tmp_path / "module.py")] == ([use] if use else [])


def test_no_signature_has_more_than_12_parameters() -> None:
    long = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
                if len({*names} - {"self", "cls"}) > 12:
                    long[f"{path.relative_to(ROOT)}: {node.name}"] = len(names)
    assert long == {}


def test_every_module_has_a_docstring() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    others = {path: text for path, text in texts.items() if not re.match(r'"""\w', text)}  # a comment comes first
    assert [path for path, text in others.items() if not ast.get_docstring(ast.parse(text))] == []


def test_no_file_mentions_a_path_of_a_developers_machine() -> None:
    machine = re.compile(r"(?<![\w.$}~:/-])/(?:home|Users|root|work)/\w")
    folders = [ROOT / name for name in (*PARTS, "inventory", "docs", "tests", ".ci")]
    files = [path for path in ROOT.iterdir() if path.suffix in {".md", ".toml", ".ini"}]
    files += [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    kinds = {".py", ".c", ".h", ".md", ".yaml", ".toml", ".ini", ".html", ".css", ".js", ".svg", ""}
    mentions = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path.suffix in kinds
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if machine.search(line)
    ]
    assert len(files) > len(SOURCES)
    assert mentions == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = CliRunner().invoke(tracebed, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert re.search(rf"Examples?:\s+tracebed {command}\b", result.output), result.output


def test_help_loads_nothing_heavy() -> None:
    script = """
import json, sys
from click.testing import CliRunner
from tracebed.cli import COMMANDS, tracebed
heavy, found = set(json.loads(sys.argv[1])), {}
for words in [[], *([command] for command in COMMANDS)]:
    result = CliRunner().invoke(tracebed, [*words, "--help"])
    assert result.exit_code == 0, (words, result.output, result.exception)
    found[" ".join(["tracebed", *words, "--help"])] = sorted(heavy & set(sys.modules))
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(sorted(HEAVY))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {words: modules for words, modules in json.loads(done.stdout).items() if modules} == {}


def test_the_page_of_the_api_lists_all_extension_points() -> None:
    declared = re.findall(
        r'^\[project\.entry-points\."(tracebed\.\w+)"\]', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    section = (ROOT / "docs/reference/api.md").read_text().partition("## What is public")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(tracebed\.\w+)`", "".join(rows))) == sorted(declared)


def test_each_command_has_a_page_of_the_reference() -> None:
    reference = ROOT / "docs/reference"
    assert {path.stem for path in (reference / "commands").glob("*.md")} == set(COMMANDS)
    index = (reference / "cli.md").read_text(encoding="utf-8")
    for name, (_, text) in COMMANDS.items():
        page = (reference / f"commands/{name}.md").read_text(encoding="utf-8")
        assert f".. click:: commands:{name}\n   :prog: tracebed {name}\n" in page
        assert f"| [`{name}`](commands/{name}.md) | {text} |" in index
