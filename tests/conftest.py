"""Shared fixtures of all tests."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests.patience import GUARD_S
from tracebed.orchestrator.testbeds import rates

ROOT = Path(__file__).resolve().parents[1]

os.environ["TRACEBED_CLAIMS"] = f"test-{os.getpid()}"  # replays of parallel tests may share CPUs
# The speed of the machine decides no test. Each run draws other examples, so a person's run draws few.
settings.register_profile("tracebed", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=120)  # --hypothesis-profile thorough
settings.load_profile("tracebed")
# A background job of a shell ignores SIGINT, and a command under nohup SIGHUP. Child processes would inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection, which looks at their objects neither now nor later.

    It would take a quarter of the CPU time of the collection, and 4 % of that of the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules without slow tests if only slow tests are run: each worker would import all modules."""
    if config.getoption("markexpr") != "slow" or collection_path.suffix != ".py":
        return None
    return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the state of tests apart from that of the user, and measure work rates shortly, but for any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))  # locks of groups of nodes
        patch.setattr(rates, "WINDOWS", 2)
        patch.setattr(rates, "WINDOW_S", 0.05)
        patch.setattr(rates, "PATIENCE", 4 * GUARD_S)  # times a fifth of a second
        yield


@pytest.fixture(scope="session")
def reference_data() -> Callable[[str], Path]:
    """Return a function from a name to its path in the reference data; without the data it skips the test."""
    folder = Path(os.environ.get("TRACEBED_REFERENCE_DATA") or ROOT.parent / "shared" / "data")

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            pytest.skip(f"no reference data {name} in {folder} (set TRACEBED_REFERENCE_DATA)")
        return path

    return find


@pytest.fixture(scope="session")
def container_engine() -> Iterator[str]:
    """Return the address of a container engine with the base image: that of the environment, or a dockerd for tests."""
    from tests.servers import dockerd

    if address := os.environ.get("TRACEBED_TEST_ENGINE"):
        dockerd.load_base(address)
        yield address
        return
    if reason := dockerd.reason_to_skip():
        pytest.skip(reason)
    with dockerd.engine() as address:
        yield address


@pytest.hookimpl(wrapper=True)
def _skip_if_hung(item: pytest.Item) -> Generator[None, object, object]:
    """Skip the rest of a failed test whose container engine hangs: no request of a client may lead to that."""
    try:
        return (yield)
    except Exception as error:
        address = getattr(item, "funcargs", {}).get("container_engine")
        if address is not None and "TRACEBED_TEST_ENGINE" not in os.environ:  # the engine is the tests' own
            from tests.servers import dockerd

            if stacks := dockerd.hung(address):
                pytest.skip(f"the container engine hangs ({stacks} has its stacks); the test had failed: {error!r}")
        raise


pytest_runtest_call = pytest_runtest_teardown = _skip_if_hung


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs `tracebed` in an empty folder: (exit status, standard output, error)."""
    monkeypatch.chdir(tmp_path)
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))

    def run(*arguments: str) -> tuple[int, str, str]:
        from tracebed import cli

        monkeypatch.setattr(sys, "argv", ["tracebed", *arguments])
        with pytest.raises(SystemExit) as end, pytest.MonkeyPatch.context():
            cli.main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let experiments and validations write no plots and empty HTML pages, and what-ifs pages without pictures.

    Pictures take most of the time of small ones. This holds for commands in the process of the test.
    """
    from tracebed.operators.whatif import page
    from tracebed.validation.experiments.views import plots
    from tracebed.validation.report import html

    def write_empty(_: object, path: Path | str, *__: object, **___: object) -> Path:
        return html.write_page("", Path(path))

    monkeypatch.setattr(plots, "draw", lambda *_: ([], []))
    monkeypatch.setattr(page, "pictures", lambda _: {})
    monkeypatch.setattr(html, "write", write_empty)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pictures be made and written as files of a picture, but not rendered, which takes most of their time."""
    from matplotlib.figure import Figure

    text = 20 * "<svg><dc:title>tracebed</dc:title></svg>\n"  # as in a picture of tracebed, which may be replaced

    def save(_: Figure, file: Any, **__: object) -> None:
        file.write(text if isinstance(file, io.TextIOBase) else text.encode())

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture
def svg_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let figures for papers be written in one format, for a test that is not about formats."""
    from tracebed.validation import pictures

    monkeypatch.setattr(pictures, "FORMATS", ("svg",))


@pytest.fixture
def no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a process behind, even an orphan in another session."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("TRACEBED_TEST", mark)
    yield
    deadline = time.monotonic() + GUARD_S  # time for the kernel to end processes that were killed with their parent
    while (strays := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert strays == []


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.environ().get("TRACEBED_TEST") != mark:
                continue
            if "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):  # it lives as long as pytest
                found.append(process)
    return found
