"""Programs for tests of the driver of ElastiSim: the real one where it is present, and fakes that fail."""

from __future__ import annotations

import importlib.util
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.executables import write_program

ROOT = Path(__file__).resolve().parents[2]
FAKE = """#!{python}
import json, os, signal, sys, time

import zmq

configuration = json.load(open(sys.argv[1]))
jobs = json.load(open(configuration["jobs_file"]))["jobs"]
context = zmq.Context()
socket = context.socket(zmq.PAIR)
socket.bind(configuration["zmq_url"])


def invoke(kind, time, job):
    socket.send_json({{"code": 0xFFEC4400, "time": time, "invocation_type": kind, "job_id": job}})
    return socket.recv_json()["jobs"]


def finish(statistics):
    open("job_statistics.csv", "w").write(statistics)
    socket.send_json({{"code": 0xFFEC44FF}})
    socket.close()
    context.term()  # after the message is sent; at its exit, Python drops what is not sent yet


HEADER = "ID,Type,Submit Time,Start Time,End Time,Wait Time,Makespan,Turnaround Time,Status\\n"
{body}
"""


def fake(folder: Path, body: str) -> Path:
    """Write a program that speaks the protocol of ElastiSim as `body` says."""
    return write_program(folder / "fake-elastisim", FAKE.format(python=sys.executable, body=body))


def real(folder: Path) -> Path:
    """Return the program of ElastiSim, unpacked into `folder`; skip the test where it cannot run."""
    if importlib.util.find_spec("zmq") is None:
        pytest.skip("pyzmq is not installed (pip install 'tracebed[elastisim]')")
    given = os.environ.get("TRACEBED_ELASTISIM")
    if given:
        return Path(given)
    packed = sorted((ROOT.parent / "shared" / "peers" / "elastisim").glob("elastisim-*-debian12-amd64.xz"))
    if not packed:
        pytest.skip("no program of ElastiSim in ../shared/peers/elastisim (set TRACEBED_ELASTISIM)")
    path = folder / "elastisim"
    path.write_bytes(lzma.decompress(packed[0].read_bytes()))
    path.chmod(0o755)
    linked = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    if "not found" in linked:
        pytest.skip("the libraries of ElastiSim are not installed (apt-get install libsimgrid3.32 libzmq5)")
    return path
