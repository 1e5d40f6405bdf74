"""A container engine for tests: the one of this machine, or a dockerd in a folder of its own; and a base image.

As a script, it starts a dockerd with the base image, prints the line to export, and stays until Ctrl-C:

    python -m tests.servers.dockerd
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
from docker.errors import ImageNotFound, NotFound
from requests.exceptions import ReadTimeout

from tests.patience import GUARD_S, matching, patience, until

SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PROGRAMS = ("dockerd", "iptables", "debootstrap", "ip", "unshare")
PACKAGES = "docker.io iptables debootstrap iproute2 util-linux"
ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
"""Run a program in a network of its own: engines change the firewall of their network, and leave rules in it."""
BASE = "tracebed-test-base:bookworm"
"""The base of the images: Debian with Python, made by debootstrap, since tests pull nothing."""
CACHE = "TRACEBED_TEST_CACHE"
"""Environment variable with the folder that keeps the base between runs; unset: a folder for temporary files."""


def reason_to_skip() -> str | None:
    """Return why no dockerd can be started on this machine, or None."""
    if missing := [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]:
        return f"no {', '.join(missing)}: apt-get install {PACKAGES}"
    return None if os.geteuid() == 0 else "dockerd and debootstrap need root"


@contextlib.contextmanager
def engine(*more: str, alone: bool = True) -> Iterator[str]:
    """Start a dockerd in a folder for temporary files, load the base image, and yield the address of the engine.

    Args:
        more: more arguments of dockerd.
        alone: whether the engine has a network of its own, in which this machine reaches it by its socket only.
    """
    folder = Path(tempfile.mkdtemp(prefix="tracebed-dockerd-"))  # short, for the paths of sockets
    address = f"unix://{folder}/docker.sock"
    command = [*(ALONE if alone else ()), "dockerd", "-H", address]
    command += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    command += ["-p", f"{folder}/dockerd.pid", "--bridge", "none", *more]
    with serving(command, address, folder, {**os.environ, "PATH": SEARCHED}):
        yield address


@contextlib.contextmanager
def serving(command: list[str], address: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run an engine with the base image. At the end, its folder is removed."""
    log = folder / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            preexec_fn=_end_with_parent,
        )
    try:
        _await_engine(address, process, log)
        load_base(address)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GUARD_S)
        finally:
            process.kill()
            process.wait()
            _remove(folder)


def hung(address: str, patience_s: float = GUARD_S) -> Path | None:
    """Return the file with the stacks of an engine that does not tell the states of containers in time, or None.

    The engine of Debian 12 was seen to answer no inspection any more, while it still listed its containers.
    """
    with contextlib.closing(docker.DockerClient(address, timeout=int(patience_s), version="1.41")) as client:
        try:
            for facts in client.api.containers(all=True):
                with contextlib.suppress(NotFound):
                    client.api.inspect_container(facts["Id"])
        except ReadTimeout:
            folder = Path(address.removeprefix("unix://")).parent
            os.kill(int((folder / "dockerd.pid").read_text(encoding="ascii")), signal.SIGUSR1)
            until(lambda: matching(folder / "exec", "goroutine-stacks-*"))
            kept = Path(tempfile.gettempdir(), f"{folder.name}.stacks")  # the folder goes with the engine
            kept.write_bytes(b"".join(file.read_bytes() for file in matching(folder / "exec", "goroutine-stacks-*")))
            return kept
    return None


def _remove(folder: Path) -> None:
    """Remove the folder of an engine, and what is mounted in it."""
    for mount in reversed(Path("/proc/mounts").read_text(encoding="utf-8").splitlines()):
        if mount.split()[1].startswith(f"{folder}/"):
            subprocess.run(["umount", mount.split()[1]], check=False)
    shutil.rmtree(folder)


def _end_with_parent() -> None:
    """Have the kernel end this process with the process that has started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)


def _await_engine(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the socket of an engine that was started. Its `log` is the error if it ends."""
    end = time.monotonic() + GUARD_S
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(address.removeprefix("unix://"))
            return
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(log.read_text(encoding="utf-8", errors="replace")[-4000:])
        time.sleep(0.1)


def load_base(address: str) -> None:
    """Load the base image into an engine that does not have it."""
    with contextlib.closing(docker.DockerClient(address, timeout=int(patience(300)))) as client:
        try:
            client.images.get(BASE)
        except ImageNotFound:
            client.api.import_image(str(base_archive()), repository=BASE)  # Podman 4.3 ignores the argument `tag`


def base_archive(*more: str) -> Path:
    """Return the archive of the base. It is made once (about two minutes); other processes wait for it.

    Args:
        more: further Debian packages in it.
    """
    folder = Path(os.environ.get(CACHE) or Path(tempfile.gettempdir()) / "tracebed-test-cache")
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{'-'.join(['bookworm', *more])}.tar"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(prefix="tracebed-debootstrap-") as root:
                _run([*debootstrap("python3", *more), root])
                part = archive.with_suffix(".part")
                _run(["tar", "-C", root, "-cf", str(part), "."])
                part.rename(archive)
    return archive


def debootstrap(*packages: str) -> list[str]:
    """Return the command that makes a small Debian with some packages in the folder that follows."""
    return ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", "bookworm"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": SEARCHED}, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def stay(line: str) -> None:
    """Print a line, and wait for Ctrl-C."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def main() -> None:
    """Start a dockerd, and stop it at Ctrl-C."""
    with engine() as address:
        stay(f"export DOCKER_HOST={address}")


if __name__ == "__main__":
    main()
