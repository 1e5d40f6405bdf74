"""Packing of recorded suites, for maintainers.

    python -m tracebed.validation.recorded.packing NAME CAMPAIGN RUNS TITLE

CAMPAIGN is the file of a campaign whose cells are named WORKLOAD-POLICY, RUNS is the output of `tracebed repeat`. The
suite replaces the one of the same name in the package. Equal runs give an equal file.
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
from tracebed.errors import InputError
from tracebed.files import replacing
from tracebed.orchestrator.run import Run
from tracebed.validation.recorded.store import INDEX, REAL

EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time stamp of all files in the zip file."""
SUITE = """\
# {title}
# A suite for `tracebed validate`. Add a simulator: its predictions, or the command that makes them.
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


def pack(campaign: Path, runs: Path, title: str) -> tuple[bytes, dict[str, Any]]:
    """Return a suite as a zip file, and its entry in the index.

    Args:
        campaign: the campaign file; its cells are named WORKLOAD-POLICY.
        runs: the output folder of the campaign.
        title: what was run where, in one line.

    Raises:
        InputError: a cell has no runs, or its name does not end in its policy.
    """
    spec = yaml.safe_load(campaign.read_text(encoding="utf-8"))
    defaults = spec.get("defaults", {})
    workloads: dict[str, str] = {}
    policies: dict[str, dict[str, Any]] = {}
    count = jobs = 0
    created = []
    with tempfile.TemporaryDirectory(prefix="tracebed-packing-") as scratch:
        folder = Path(scratch)
        (folder / "workloads").mkdir()
        for case, cell in spec["cells"].items():
            cell = defaults | cell
            workload, dash, policy = case.rpartition("-")
            if not dash or policy != cell["policy"]:
                raise InputError(f"cell {case} is not named WORKLOAD-{cell['policy']}", where=str(campaign))
            if workload not in workloads:
                workloads[workload] = f"workloads/{workload}.csv"
                write_workload(read_workload(campaign.parent / cell["workload"]), folder / workloads[workload])
            repetitions = sorted((runs / case).glob("rep-*"))
            if not repetitions:
                raise InputError(f"cell {case} has no runs", where=str(runs), hint="run `tracebed repeat` first")
            for path in repetitions:
                run = Run.load(path)
                policies[policy] = run.info.policy_parameters  # those of the runs, whatever the defaults are later
                created.append(run.info.created or "")
                (folder / REAL / case).mkdir(parents=True, exist_ok=True)
                Run(run.info, run.jobs, run.allocations, run.reconfigurations).save(folder / REAL / case / path.name)
            count += len(repetitions)
            jobs += len(run.jobs)
        calibration = defaults.get("work_rate")
        if calibration:
            (folder / "calibration.yaml").write_bytes((campaign.parent / calibration).read_bytes())
        text = SUITE.format(
            title=title,
            workloads="\n".join(f"  {name}: {file}" for name, file in workloads.items()),
            policies="\n".join(f"  {policy}: {json.dumps({'parameters': has})}" for policy, has in policies.items()),
            calibration="calibration: calibration.yaml" if calibration else "",
        )
        (folder / "suite.yaml").write_text(text, encoding="utf-8")
        data = _zipped(folder)
    facts = {"title": title, "cases": len(spec["cells"]), "runs": count, "jobs": jobs, "recorded": min(created)[:10]}
    return data, facts | {"sha256": hashlib.sha256(data).hexdigest()}


def _zipped(folder: Path) -> bytes:
    """Return the files of a folder as a zip file, in the order of their paths."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            item = zipfile.ZipInfo(str(path.relative_to(folder)), EPOCH)
            item.compress_type, item.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(item, path.read_bytes(), compresslevel=9)
    return stream.getvalue()


def main(name: str, campaign: str, runs: str, title: str) -> None:
    """Pack a suite, and add it to the index of the package in the current checkout."""
    room = Path(__file__).parent
    data, facts = pack(Path(campaign), Path(runs), title)
    with replacing(room / f"{name}.zip") as file:
        file.write(data)
    index = yaml.safe_load((room / INDEX).read_text(encoding="utf-8")) or {}
    with replacing(room / INDEX) as file:
        file.write(yaml.safe_dump(dict(sorted((index | {name: facts}).items())), sort_keys=False, width=120).encode())
    sys.stdout.write(f"{name}.zip: {facts['runs']} runs, {len(data):,} bytes\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
