"""Packing of recorded suites, for maintainers.

    python -m tests.recorders.packing NAME EXPERIMENT OUTPUT TITLE

EXPERIMENT is an experiment file whose cases are named WORKLOAD-POLICY, OUTPUT is the output folder of `tracebed
experiment`. The suite replaces the one of the same name in the package. Equal runs give an equal file.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.orchestrator.run import Run
from tracebed.validation import recorded as store
from tracebed.validation.experiments.experiment_schema import PolicySpec
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.recorded import INDEX, REAL

EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time stamp of all files in the zip file."""
SUITE = """\
# {title}
# An experiment for `tracebed validate`. Add a simulator: its predictions, or the command that makes them.
workloads:
{workloads}
policies:
{policies}
recorded: "real/{{workload}}-{{policy}}/rep-*"
simulators:
  tracebed: {{{calibration}}}
  # mine: {{runs: "mine/{{workload}}-{{policy}}.csv", from: csv}}
  # other: {{command: "simulate {{workload}} {{policy}} {{nodes}} {{output}}.csv", from: csv}}
"""


def pack(file: Path, output: Path, title: str) -> tuple[bytes, dict[str, Any]]:
    """Return a suite as a zip file, and its entry in the index.

    Args:
        file: the experiment. Its simulator `tracebed`, if there is one, has the calibration of the suite.
        output: the output folder of the experiment.
        title: what was run where, in one line.

    Raises:
        InputError: a workload is not a file, or a case has no runs or another name than WORKLOAD-POLICY.
    """
    loaded = load_experiment(str(file))
    experiment, source = loaded.experiment, loaded.source
    parameters = {policy.name: policy.parameters for policy in experiment.policies}
    calibration = experiment.simulators["tracebed"].calibration if "tracebed" in experiment.simulators else None
    if isinstance(calibration, dict):  # of the only testbed
        calibration = calibration.get("")
    points = experiment.points()
    count = jobs = 0
    created = []
    with tempfile.TemporaryDirectory(prefix="tracebed-packing-") as scratch:
        folder = Path(scratch)
        (folder / "workloads").mkdir()
        for name, workload in experiment.workloads.items():
            if not workload.is_plain:
                raise source.error(f"workload {name} is not a file", "workloads", name)
            write_workload(read_workload(loaded.folder / str(workload.file)), folder / f"workloads/{name}.csv")
        for point in points:
            case = f"{point.workload}-{point.policy}"
            if experiment.case_name(point) != case:
                raise source.error(f"case {experiment.case_name(point)} is not named {case}")
            repetitions = sorted((output / REAL / case).glob("rep-*/run.json"))
            if not repetitions:
                raise InputError(f"case {case} has no runs", where=str(output), hint="run `tracebed experiment` first")
            for path in (each.parent for each in repetitions):
                run = Run.load(path)
                parameters[point.policy] |= run.info.policy_parameters  # whatever the defaults are later
                created.append(run.info.created or "")
                (folder / REAL / case).mkdir(parents=True, exist_ok=True)
                Run(run.info, run.jobs, run.allocations, run.reconfigurations).save(folder / REAL / case / path.name)
            count += len(repetitions)
            jobs += len(run.jobs)
        if isinstance(calibration, str):
            (folder / "calibration.yaml").write_bytes((loaded.folder / calibration).read_bytes())
        text = SUITE.format(
            title=title,
            workloads="\n".join(f"  {name}: workloads/{name}.csv" for name in experiment.workloads),
            policies="\n".join(f"  - {_policy(each, parameters[each.name])}" for each in experiment.policies),
            calibration="calibration: calibration.yaml" if isinstance(calibration, str) else "",
        )
        (folder / "suite.yaml").write_text(text, encoding="utf-8")
        data = _zipped(folder)
    facts = {"title": title, "cases": len(points), "runs": count, "jobs": jobs, "recorded": min(created)[:10]}
    return data, facts | {"sha256": hashlib.sha256(data).hexdigest()}


def _policy(spec: PolicySpec, parameters: dict[str, Any]) -> str:
    """Return a policy with its parameters as YAML, on one line."""
    if not parameters and spec.name == spec.policy:
        return spec.name
    return json.dumps({"label": spec.name} | spec.model_dump(exclude_defaults=True) | {"parameters": parameters})


def _zipped(folder: Path) -> bytes:
    """Return the files of a folder as a zip file, in the order of their paths."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            item = zipfile.ZipInfo(str(path.relative_to(folder)), EPOCH)
            item.compress_type, item.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(item, path.read_bytes(), compresslevel=9)
    return stream.getvalue()


def main(name: str, experiment: str, output: str, title: str) -> None:
    """Pack a suite, and add it to the index of the package in the current checkout."""
    room = Path(store.__file__).parent
    data, facts = pack(Path(experiment), Path(output), title)
    with replacing(room / f"{name}.zip") as file:
        file.write(data)
    index = yaml.safe_load((room / INDEX).read_text(encoding="utf-8")) or {}
    with replacing(room / INDEX) as file:
        file.write(yaml.safe_dump(dict(sorted((index | {name: facts}).items())), sort_keys=False, width=120).encode())
    sys.stdout.write(f"{name}.zip: {facts['runs']} runs, {len(data):,} bytes\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
