"""Recognition of formats by content: no format accepts another's files."""

from __future__ import annotations

import gzip
import inspect
import re
import warnings
from pathlib import Path

import pytest

from tests.converters.test_gwf import LOG as GWF
from tests.converters.test_mwf import LOG as MWF
from tests.converters.test_public_datasets import CSV, LASSEN, SUPERCLOUD, VALID, marconi, parquet
from tracebed.cli.logs import PLAIN
from tracebed.converters.formats import format as formats
from tracebed.converters.formats.reading import read_workload, recognized
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.writing import write_workload
from tracebed.ground.errors import Tolerated

SWF = "1 0 10 100 4 -1 -1 4 200 2048 1 7 8 -1 2 1 -1 -1"
LINES: dict[str, list[str]] = {
    "csv": ["job_id,submit_time,run_time,nodes\n1,0,5,2\n"],
    "cori": ["Job,User,Host Name,Partition,QOS,Submit,Start,End,Elapsed Secs,Nodes Allocated,Raw Hours\n1\n"],
    "eagle": ["job_id,user,wallclock_req,nodes_req,processors_req,submit_time,start_time,end_time,run_time,state\n1\n"],
    "theta": ['"JOB_NAME","QUEUED_TIMESTAMP","WALLTIME_SECONDS","RUNTIME_SECONDS","NODES_REQUESTED","NODES_USED"\n1\n'],
    "sacct": ["JobID|User|Submit|Start|End|Elapsed|State|NNodes|ReqNodes|NCPUS|Partition\n1\n"],
    "ub-slurm": [
        "dt;job_id;wall_time;user;wall_limit;n_tasks;ntasks_per_node;account;partition;qos;constraint;mem;gres\n0;1\n",
        "-dt 0 -e submit_batch_job | -J jobid_1 -sim-walltime 5 --uid=user1 -t 00:01:00 -n 1 pseudo.job\n",
    ],
    "pbs": ["01/02/2021 10:00:00;E;7.server;user=ann queue=q ctime=1 start=2 end=3\n"],
    "elastisim": ['{"jobs": [{"type": "rigid", "submit_time": 0, "num_nodes": 1, "application_model": "a.json"}]}'],
    "batsim": ['{"nb_res": 4, "jobs": [{"id": "1", "subtime": 0, "res": 1, "profile": "p"}], "profiles": {}}'],
    "swf": [
        f"; Version: 2.2\n{SWF}\n",
        f"{SWF}\n",
        SWF.replace(" ", ";"),
        f"{SWF} 64 1800 frontier:excl:8x56\n",
        f"{SWF} {{a b c d e f g h}} q@server 8:ppn=2:x#excl\n",
    ],
}
EXAMPLES: dict[str, list[bytes]] = {name: [text.encode() for text in texts] for name, texts in LINES.items()} | {
    "amte": [b"281568387;/jobs/job_1; started; [host00, host01]\n22103801971;/jobs/job_1; terminated\n"],
    "gwf": [GWF, GWF.split(b"\n")[2]],
    "mwf": [MWF, MWF.split(b"\n")[1]],
    "pm100": [
        VALID["pm100"],
        CSV["pm100"],
        parquet(marconi(run_time=[1800, 3600, 0], nodes="['r1']")),  # the mandatory columns of a workload
    ],
    "fdata": [VALID["fdata"], CSV["fdata"]],
    "lassen": [LASSEN],
    "supercloud": [SUPERCLOUD],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, files in EXAMPLES.items() for data in files])
def test_content_alone_determines_the_format(name: str, data: bytes) -> None:
    for content in (data, b"\xef\xbb\xbf" + data if b"," in data[:20] else data):
        file = Input.of(content, "log")
        found = recognized(file)
        assert found is not None
        assert found.name == name
        as_sure = [known.name for known in formats.known() if known.marks == found.marks and known.recognizes(file)]
        assert as_sure == [name], "the order among formats of equally sure marks must not matter"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "swf"])
def test_files_written_by_tracebed_are_recognized_whatever_was_read(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(gzip.compress(VALID["pm100"]))
    path = tmp_path / f"w.{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)
        write_workload(read_workload(tmp_path / "log", keep_extra=True), path)
    found = recognized(Input.of(path.read_bytes(), "unnamed"))
    assert found is not None
    assert found.name == suffix


def test_every_format_that_is_read_has_an_example() -> None:
    readable = {known.name for known in formats.known() if known.reader}
    assert readable - set(EXAMPLES) == {"parquet"}  # its example is above


def test_formats_have_the_names_of_their_entry_points() -> None:
    assert {name: formats.named(name).name for name in formats.FORMATS.names()} == {
        name: name for name in formats.FORMATS.names()
    }
    assert len(formats.FORMATS.names()) >= 18


def test_help_and_docs_name_the_pseudonymized_formats() -> None:
    readers = {known.name: inspect.signature(known.reader).parameters for known in formats.known() if known.reader}
    plain = [name for name, options in readers.items() if "keep_names" not in options]
    assert re.findall(r"[\w-]+", PLAIN.replace(" and ", ", ")) == sorted(plain)
    docs = (Path(__file__).parents[2] / "docs" / "reference" / "formats" / "logs.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"The readers of tracebed's own formats(.*?)replace no\s+names", docs, re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(plain)
