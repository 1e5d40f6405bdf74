"""Downloads of data sets, from a server on the loopback interface: verified, limited, and with a way out."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.commands import call
from tracebed.ground.errors import InputError
from tracebed.studies.board import datasets as fetching
from tracebed.studies.board.datasets import Dataset, datasets, download, fetch

TABLE = b"id,submit,start,end,nodes\na,0,0,60,1\nb,5,60,90,1\n"
SHORT_S = 0.3
"""Time-out of the downloads that time out."""


class Server(ThreadingHTTPServer):
    """A server of files that come in several damaged ways."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.over = threading.Event()
        self.asked: list[str] = []

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is no error."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        name = self.path.rpartition("/")[2]
        if name == "missing.csv":
            self.send_error(404)
            return
        if name == "moved.csv":
            self.send_response(302)
            self.send_header("Location", "/log.csv")
            self.end_headers()
            return
        if name == "silent.csv":
            self.server.over.wait()
            return
        self.send_response(200)
        if name in ("log.csv", "cut.csv", "drip.csv"):
            self.send_header("Content-Length", str(len(TABLE)))
        if name == "chunks.csv":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if name == "log.csv":
            self.wfile.write(TABLE)
        elif name in ("cut.csv", "unannounced.csv"):
            self.wfile.write(TABLE[:20])
        elif name == "chunks.csv":
            self.wfile.write(b"14\r\n" + TABLE[:10])  # 20 bytes are announced
        elif name == "other.csv":
            self.wfile.write(TABLE.replace(b"60", b"61"))
        elif name == "endless.csv":
            while not self.server.over.is_set():
                self.wfile.write(b"a" * 2**16)
        else:  # drip.csv
            while not self.server.over.wait(SHORT_S / 20):
                self.wfile.write(b"a")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def small(monkeypatch: pytest.MonkeyPatch, addresses: dict[str, str], *names: str) -> Dataset:
    """Return a new data set `small` of files with the content `TABLE`."""
    made = Dataset(
        name="small",
        title="two jobs",
        institution="a university",
        source="https://example.org/runs",
        commit="0123456",
        addresses=addresses,
        licence="",
        citation="Someone, somewhere",
        files=dict.fromkeys(names or ("log.csv",), hashlib.sha256(TABLE).hexdigest()),
    )
    monkeypatch.setitem(datasets(), "small", made)
    return made


def test_a_data_set_without_a_copy_is_downloaded(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small(
        monkeypatch,
        {"*.csv": server.address("{stem}/moved.csv"), "*": server.address("{rest}")},
        "log.csv",
        "b.log.csv",
    )
    result = call("validate", "--recorded", "small", "-o", tmp_path / "copy")
    assert "licence: none stated; cite: Someone, somewhere" in result.stdout
    assert (tmp_path / "copy" / "log.csv").read_bytes() == TABLE
    assert (tmp_path / "copy" / "b.log.csv").read_bytes() == TABLE
    assert "commit 0123456" in (tmp_path / "copy" / "ORIGIN.txt").read_text()
    assert server.asked == ["/log/moved.csv", "/log.csv", "/b/moved.csv", "/log.csv"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "the server answers 404 Not Found"),
        ("cut", "the connection was cut after 20 bytes"),
        ("chunks", "the connection was cut: IncompleteRead"),
        ("unannounced", r"is not the file log.csv of small: its SHA-256 is [0-9a-f]{12}\.\.\., not "),
        ("other", r"is not the file log.csv of small: its SHA-256 is [0-9a-f]{12}\.\.\., not "),
        ("endless", "is larger than 1,000,000 bytes"),
        ("silent", "was not complete after 0.3 s"),
        ("drip", "was not complete after 0.3 s"),
    ],
)
def test_a_download_that_fails_names_the_address_and_the_local_copy(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, message: str
) -> None:
    small(monkeypatch, {"*": server.address(f"{name}.csv")})
    monkeypatch.setattr(fetching, "LARGEST", 1_000_000)
    with pytest.raises(InputError, match=message) as error:
        fetch("small", tmp_path / "copy", timeout_s=SHORT_S if name in ("silent", "drip") else 60.0)
    assert error.value.where == server.address(f"{name}.csv")
    assert "--from FOLDER" in str(error.value.hint)
    assert server.asked == [f"/{name}.csv"]  # nothing is tried again
    assert not (tmp_path / "copy").exists()


def test_a_missing_network_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    small(monkeypatch, {"*": "http://data.invalid/log.csv"})
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    result = call("validate", "--recorded", "small", "-o", tmp_path / "copy")
    assert "cannot be reached: [Errno -3] Temporary failure in name resolution" in str(result.exception)
    assert "give a local copy of the files: --from FOLDER" in str(result.exception)


def test_a_refused_connection_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as bound:  # nothing listens on its port
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match=r"cannot be reached: .*refused"):
            download(f"http://127.0.0.1:{bound.getsockname()[1]}/log.csv", largest=10)


def test_a_data_set_without_addresses_names_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small(monkeypatch, {"other.csv": "http://127.0.0.1/other.csv"})
    with pytest.raises(InputError, match=r"the address of log\.csv is unknown, so small cannot be downloaded") as error:
        fetch("small", tmp_path / "copy")
    assert "get https://example.org/runs at commit 0123456, and give its folder: --from FOLDER" in str(error.value.hint)


def test_each_file_of_the_data_sets_has_one_address_at_a_fixed_commit() -> None:
    known = {name: [each.address(file) for file in each.files] for name, each in datasets().items()}
    for name in ("slurm-model", "slurm-model-nodes", "slurm-22.05"):  # the last one is part of the source of tracebed
        assert set(known.pop(name)) == {None}
    for name, addresses in known.items():
        assert len(set(addresses)) == len(addresses), name
        for address in addresses:
            assert address is not None
            host, _, path = address.removeprefix("https://").partition("/")
            assert host == "raw.githubusercontent.com"
            owner, repository, commit, _ = path.split("/", 3)
            assert datasets()[name].source == f"https://github.com/{owner}/{repository}"
            assert len(commit) == 40, name
    assert known["grid5000-2016-02"][0] == (
        "https://raw.githubusercontent.com/oar-team/batsim-experiments/0799212be5925b24a511c2fe4053d5cd055c8b94/"
        "simulated_experiment/simulated_run_2016-02-19_00-49/g5k_workload_delay_seed0_size34/batsim_jobs.csv"
    )
