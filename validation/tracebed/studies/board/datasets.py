"""Data sets of real runs by other people, `datasets.yaml`, with their origin, licence and hashes, and copies of them.

The data are not part of tracebed. Files of a local copy, or downloaded ones, are verified, converted where their form
is their own, and put beside an experiment file.
"""

from __future__ import annotations

import csv
import hashlib
import http.client
import io
import json
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools.files import Input
from tracebed.ground.bounds import MAX_SECONDS
from tracebed.ground.errors import InputError, Tolerated
from tracebed.ground.files import replacing_folder
from tracebed.ground.registry import unknown

INDEX = files(__package__) / "datasets.yaml"
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Dataset(BaseModel):
    """A data set of real runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str  # what was run where, in one line
    institution: str
    source: str  # address of the repository
    commit: str  # commit of the repository that has the files
    # Pattern of names of files -> address of the file. `{stem}` and `{rest}` in an address are the parts of the name
    # before and after its first dot. Empty: no address is known.
    addresses: dict[str, str] = {}
    licence: str  # the licence that the repository states; empty: none is stated
    citation: str  # publication of the data
    note: str = ""  # what is peculiar to the data
    files: dict[str, Hash]  # name of a file -> SHA-256 of its content, uncompressed
    # Name of a table that is made of the files -> name of the conversion (`CONVERSIONS`).
    converted: dict[str, str] = {}
    # Gated metric by which entries are ordered; another one where jobs do not wait.
    measure: str = "mean_wait_s"
    # Experiment file for `tracebed validate` in the folder of the files; empty: the data are no cases yet.
    suite: str = ""

    def address(self, file: str) -> str | None:
        """Return the address of a file, or None if it is unknown."""
        stem, _, rest = file.partition(".")
        templates = (address for pattern, address in self.addresses.items() if fnmatchcase(file, pattern))
        return next((address.format(stem=stem, rest=rest) for address in templates), None)


@cache
def datasets() -> dict[str, Dataset]:
    """Return the data sets by name."""
    content = yaml.safe_load(INDEX.read_text(encoding="utf-8"))
    return {name: Dataset(name=name, **facts) for name, facts in content.items()}


def dataset(name: str) -> Dataset:
    """Return the data set `name`.

    Raises:
        InputError: there is no such data set.
    """
    if name not in datasets():
        raise unknown("data set", name, list(datasets()))
    return datasets()[name]


TIMEOUT_S = 60.0  # longest time for one file, s: from the connection to the last byte
CHUNK = 2**16  # Bytes that are read at once. The time is checked between two chunks.
LOCAL = "give a local copy of the files: --from FOLDER"


def download(address: str, *, largest: int, timeout_s: float = TIMEOUT_S) -> bytes:
    """Return the content of the file at an https address, at most `largest` bytes, after a single request."""
    deadline = time.monotonic() + timeout_s
    too_slow = InputError(f"was not complete after {timeout_s:g} s", where=address, hint=LOCAL)
    content = bytearray()
    try:
        with urllib.request.urlopen(address, timeout=timeout_s) as answer:
            while chunk := answer.read1(CHUNK):
                content += chunk
                if len(content) > largest:
                    raise InputError(f"is larger than {largest:,} bytes", where=address, hint=LOCAL)
                if time.monotonic() > deadline:
                    raise too_slow
            announced = answer.length  # bytes of the announced length that did not come
    except urllib.error.HTTPError as error:
        what = f"the server answers {error.code} {error.reason}"
        error.close()
        raise InputError(what, where=address, hint=LOCAL) from error
    except TimeoutError as error:
        raise too_slow from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise too_slow from error
        raise InputError(f"cannot be reached: {error.reason}", where=address, hint=LOCAL) from error
    except (http.client.HTTPException, OSError) as error:
        raise InputError(f"the connection was cut: {error}", where=address, hint=LOCAL) from error
    if announced:
        raise InputError(f"the connection was cut after {len(content):,} bytes", where=address, hint=LOCAL)
    return bytes(content)


DAY_S = 86400
REQUESTS = [
    *("job_id", "submit_time", "run_time", "time_limit", "nodes", "cores_per_node", "fewest_nodes", "user", "group"),
    *("partition", "features", "gres", "memory_mib"),
]


def slurm_model_cores(files: Mapping[str, bytes]) -> bytes:
    """Return the workload of slurm_model for a machine whose nodes are its cores."""
    # A job without a planned run time (-1) runs until its limit. Features, memory, GPUs, accounts and the boundaries of
    # the nodes are left out.
    rows = ["job_id,submit_time,run_time,time_limit,nodes,user"]
    for row in _rows(files["jobs500.csv"], ";"):
        limit = 60 * int(row["wall_limit"])
        run = limit if int(row["wall_time"]) < 0 else int(row["wall_time"])
        rows.append(f"{row['job_id']},{row['dt']},{run},{limit},{row['n_tasks']},{row['user']}")
    return _table(rows)


def slurm_model_nodes(files: Mapping[str, bytes]) -> bytes:
    """Return the workload of slurm_model with all requests, as the format `ub-slurm` reads it."""
    # A job without a planned run time (-1) runs for a day longer than its limit, at which it is killed.
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)
        path = Path(folder) / "jobs500.csv"
        path.write_bytes(files[path.name])
        table = read_workload(path, "ub-slurm", keep_names=True).table
    unplanned = [int(row["wall_time"]) < 0 for row in _rows(files["jobs500.csv"], ";")]
    run = table["run_time"] + np.where(unplanned, DAY_S, 0)
    whole = {name: table[name].astype("Int64") for name in ("submit_time", "time_limit", "memory_mib")}
    return table[REQUESTS].assign(run_time=run.astype(int), **whole).to_csv(index=False).encode()


def slurm_model_run(files: Mapping[str, bytes], run: str) -> bytes:
    """Return one of the real runs of slurm_model. A job ends with its epilog, which releases its cores."""
    rows = [
        f"{row['job_id']},{row['submit_job']},{row['launch_job']},{row['job_epilog_complete']}"
        for row in _rows(files["two-runs.csv"], ",")
        if row["run_id"] == run
    ]
    return _table(["job_id,submit,start,end", *rows])


MALLOB_RUNS = (
    *("default", "default_run2", "basic-reuse", "no-reuse", "huca10", "huca100", "huca1000", "hucainfty"),
    "interarrival10",
)
"""The runs of Mallob whose logs are complete, by the names of their folders."""


def mallob_plan(files: Mapping[str, bytes], run: str) -> bytes:
    """Return the workload of a run of Mallob, with the work that its jobs had in the default run."""
    from tracebed.studies import mallob  # with a policy, which few data sets need

    table = mallob.plan(mallob.jobs_in(files, "default"), mallob.jobs_in(files, run))
    return table.to_csv(index=False).encode()


def mallob_run(files: Mapping[str, bytes], run: str) -> bytes:
    """Return the times of a run of Mallob."""
    from tracebed.studies import mallob

    return mallob.observed(mallob.jobs_in(files, run)).to_csv(index=False).encode()


BATSIM_NODES = 32
BATSCHED_DELAY_S = 5.0  # the default of batsched, which its recorded loads confirm: a job of 149 s counts as 154 s


def batsim_machine(files: Mapping[str, bytes], run: str) -> bytes:
    """Return the machine of one of Batsim's runs with shutdowns: nodes of its platform, and the rule of its options.

    All jobs are delays, which do not compute: busy nodes have the power of idle ones.
    """
    from tracebed.machine.simgrid import classes_of

    power = classes_of(files["platform.xml"].decode(), "platform.xml")[0].power
    assert power is not None
    options = json.loads(files[f"{run}.sched_input.json"])
    idle_s = options["idle_time_to_sedate"]
    sleep = {
        "rule": "subpart",
        "period_s": options["monitoring_period"],
        "idle_s": None if idle_s > MAX_SECONDS else idle_s,
        "margin_s": BATSCHED_DELAY_S,
        "planned_boot_s": options["time_switch_on"],
    }
    if "inertial_alteration" in options:
        factor = float(options["inertial_alteration"].removeprefix("x"))
        sleep |= {"rule": "inertial", "factor": factor, "delay_s": options["upper_llh_threshold"]}
    else:
        sleep["share"] = 1 - options["fraction_of_machines_to_let_awake"]
    nodes = {"count": BATSIM_NODES, "power": asdict(power) | {"busy_w": power.idle_w}}
    return yaml.safe_dump({"classes": [nodes], "sleep": sleep}, sort_keys=False).encode()


BATSIM_RUNS = ("opportunistic_shutdown", "inertial_opportunistic_shutdown", "inertial_shutdown", "easy_subpart5")


def _rows(content: bytes, delimiter: str) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(content.decode()), delimiter=delimiter)


def _table(rows: list[str]) -> bytes:
    return ("\n".join(rows) + "\n").encode()


CONVERSIONS: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "slurm-model-cores": slurm_model_cores,
    "slurm-model-nodes": slurm_model_nodes,
    "slurm-model-run-1": partial(slurm_model_run, run="1"),
    "slurm-model-run-2": partial(slurm_model_run, run="2"),
    "mallob-plan-default": partial(mallob_plan, run="default"),
    "mallob-plan-interarrival10": partial(mallob_plan, run="interarrival10"),
    **{f"mallob-run-{run}": partial(mallob_run, run=run) for run in MALLOB_RUNS},
    **{f"batsim-machine-{run}": partial(batsim_machine, run=run) for run in BATSIM_RUNS},
}
"""Name -> function from the contents of the files of a data set to the table."""
SUITE = "suite.yaml"
SUFFIXES = (".csv", ".csv.gz", ".conf", ".json", ".xml", ".trace", ".pickle")
ORIGIN = "ORIGIN.txt"  # file with the source, the licence and the citation of a copy
LARGEST = 2**26  # largest size of a file that is looked at or downloaded, bytes; those of the data sets are smaller


def fetch(name: str, folder: Path, source: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> Path:
    """Copy a data set to `folder`, which must not exist or be empty.

    Return the experiment file, or the folder if the data are no cases.

    Args:
        folder: the new folder.
        source: folder of a local copy, such as a clone of the repository. The files may have any name, be in folders
            inside of it, and be compressed with gzip. None: the files are downloaded from their addresses.
        timeout_s: longest time for the download of one file, s.

    Raises:
        InputError: there is no such data set, no file has the hash of a file of the data set, a file cannot be
            downloaded or has no known address, or `folder` has content or cannot be written.
    """
    wanted = dataset(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("exists and is not empty", where=str(folder), hint="name another folder with -o")
    contents = _downloaded(wanted, timeout_s) if source is None else _verified(wanted, source)
    with replacing_folder(folder, (ORIGIN, SUITE)) as room:
        for file, content in contents.items():
            (room / file).write_bytes(content)
        for file, conversion in wanted.converted.items():
            (room / file).write_bytes(CONVERSIONS[conversion](contents))
        (room / ORIGIN).write_text(_origin(wanted), encoding="utf-8")
        if wanted.suite:
            (room / SUITE).write_text(wanted.suite, encoding="utf-8")
    return folder / SUITE if wanted.suite else folder


def _downloaded(wanted: Dataset, timeout_s: float) -> Mapping[str, bytes]:
    """Return the content of each file of a data set from its address, with the expected hash."""
    addresses = {file: wanted.address(file) for file in wanted.files}
    if nowhere := [file for file, address in addresses.items() if address is None]:
        hint = f"get {wanted.source} at commit {wanted.commit}, and give its folder: --from FOLDER"
        raise InputError(f"the address of {nowhere[0]} is unknown, so {wanted.name} cannot be downloaded", hint=hint)
    contents: dict[str, bytes] = {}
    for file, address in addresses.items():
        assert address is not None
        content = download(address, largest=LARGEST, timeout_s=timeout_s)
        if (digest := hashlib.sha256(content).hexdigest()) != wanted.files[file]:
            what = f"is not the file {file} of {wanted.name}: its SHA-256 is {digest[:12]}..., not "
            raise InputError(what + f"{wanted.files[file][:12]}...", where=address, hint=LOCAL)
        contents[file] = content
    return contents


def fetch_from(name: str, folder: Path, sources: Sequence[Path]) -> Path:
    """Copy a data set from the first of several local copies that has its files, as `fetch`.

    Raises:
        InputError: as `fetch`; that of the first copy, if none has the files.
    """
    if not sources:
        return fetch(name, folder, None)
    errors = []
    for source in sources:
        try:
            return fetch(name, folder, source)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _verified(wanted: Dataset, source: Path) -> Mapping[str, bytes]:
    """Return the content of each file of a data set. The hash identifies a file, whatever its name in the copy."""
    if not source.is_dir():
        raise InputError("no such folder", where=str(source), hint="give the folder of a copy: --from FOLDER")
    wanted_hashes = set(wanted.files.values())
    contents: dict[str, bytes] = {}
    changed: list[Path] = []
    for path in _candidates(source, {file.partition(".")[2] for file in wanted.files}):
        content = _content(path)
        found = hashlib.sha256(content).hexdigest()
        if found in wanted_hashes:
            contents[found] = content
        elif path.name.removesuffix(".gz") in wanted.files:
            changed.append(path)
        if contents.keys() == wanted_hashes:
            break
    if missing := [name for name, digest in wanted.files.items() if digest not in contents]:
        what = f"{len(missing)} of {len(wanted.files)} files of {wanted.name} are missing: no file has the SHA-256 of "
        what += f"{missing[0]}" + (f"; {changed[0]} is another file" if changed else "")
        at = f"commit {wanted.commit}" if wanted.commit else "an unknown commit"  # a clone usually has another one
        what += f"; the files are those of {wanted.source} at {at}"
        raise InputError(what, where=str(source), hint=_checkout(wanted, source))
    return {name: contents[digest] for name, digest in wanted.files.items()}


def _checkout(wanted: Dataset, source: Path) -> str:
    """Return how a local copy gets the files of a data set."""
    if not wanted.commit:
        return "give the folder of another copy: --from FOLDER"
    clone = next((path for path in (source, *source.resolve().parents) if (path / ".git").exists()), None)
    return f"git -C {clone or 'CLONE'} checkout {wanted.commit}"


def _candidates(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Yield the files in a folder and in the folders inside of it that may be files of a data set.

    These are tables and settings, and files that are called as those of the data set after their first dot: logs are
    `log.1532` in the folder of each run.
    """
    for path in sorted(folder.rglob("*.*")):
        if not (path.name.endswith(SUFFIXES) or path.name in names):
            continue
        if path.is_file() and 0 < path.stat().st_size <= LARGEST:
            yield path


def _content(path: Path) -> bytes:
    """Return the uncompressed content of a file; empty if the file cannot be read."""
    try:
        return Input.at(path).data
    except (InputError, OSError):
        return b""


def _origin(wanted: Dataset) -> str:
    """Return the text of the file `ORIGIN`."""
    licence = wanted.licence or "none stated: use the data, and do not publish the copy"
    lines = [
        *(
            wanted.title,
            "",
            f"source: {wanted.source}, commit {wanted.commit}",
            f"institution: {wanted.institution}",
        ),
        *(f"licence: {licence}", f"cite: {wanted.citation}", *([f"note: {wanted.note}"] if wanted.note else [])),
    ]
    return "\n".join(lines) + "\n"
