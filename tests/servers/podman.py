"""A Podman for tests, in a folder of its own; and a stand-in that answers as one that lacks something."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.servers import dockerd

FILES = 16_384
"""Hard limit of open files of the service, which lacks the capability to exceed it: Podman's own is 1,048,576."""
WITHIN = f'default_ulimits = ["nofile={FILES}:{FILES}", "nproc=4096:4096"]'
LIMITED = ["setpriv", "--bounding-set", "-sys_resource", "prlimit", f"--nofile={FILES}"]


def reason_to_skip(*more: str) -> str | None:
    """Return why no Podman can be started on this machine, or None. `more` are further programs."""
    programs = ("podman", "runc", "setpriv", "prlimit", "unshare", "ip", "debootstrap", *more)
    if missing := [name for name in programs if shutil.which(name, path=dockerd.SEARCHED) is None]:
        return f"no {', '.join(missing)}: apt-get install podman runc util-linux iproute2 debootstrap"
    return None if os.geteuid() == 0 else "this Podman and debootstrap need root"


@contextlib.contextmanager
def engine(containers: str = "", service: str = "", runtime: str = "runc") -> Iterator[str]:
    """Start a Podman with low limits in a network of its own, load the base image, and yield the address.

    Args:
        containers: lines of the section [containers] of its configuration.
        service: lines of the section [engine].
        runtime: the runtime of containers.
    """
    folder = Path(tempfile.mkdtemp(prefix="tracebed-podman-"))  # short, for the paths of sockets
    address, settings = f"unix://{folder}/podman.sock", folder / "containers.conf"
    settings.write_text(f'[containers]\n{containers}\n[engine]\nruntime = "{runtime}"\n{service}\n')
    podman = ["podman", "--root", f"{folder}/data", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/tmp"]
    podman += ["--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    environment = {**os.environ, "PATH": dockerd.SEARCHED, "CONTAINERS_CONF": str(settings)}
    command = [*dockerd.ALONE, *LIMITED, *podman, "system", "service", "--time", "0", address]
    with dockerd.serving(command, address, folder, environment):
        try:
            yield address
        finally:
            subprocess.run([*podman, "rm", "--all", "--force"], env=environment, capture_output=True, check=False)


@contextlib.contextmanager
def stand_in(socket: Path, refused: str, message: str) -> Iterator[str]:
    """Answer as a Podman of one container that refuses one request, and yield the address.

    Args:
        socket: path of its socket.
        refused: end of the path of the request.
        message: the answer; for a build, the output of the step.
    """
    state = {"State": "missing"}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    self.rfile.read(size + 2)
                self.rfile.readline()
            path = self.path.partition("?")[0].partition("/v1.41")[2] or self.path
            status, found = self.found(path, given)
            content = "".join(json.dumps(one) for one in found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer

        def found(self, path: str, given: bytes) -> tuple[int, list[Any]]:
            if path == "/build":
                step = 'building at STEP "RUN python3": while running runtime: exit status 1\n'
                return 200, [{"stream": message}, {"errorDetail": {"message": step}, "error": step}]
            if path.endswith(refused):
                return 500, [{"cause": message, "message": message, "response": 500}]
            if path == "/version":
                return 200, [{"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}]
            if path == "/info":
                return 200, [{"Architecture": "amd64", "Name": "elsewhere"}]
            if self.command == "DELETE":
                state["State"] = "missing"
                return 200, [{}]
            if path == "/containers/json":
                return 200, [[] if state["State"] == "missing" else [state]]
            if path == "/containers/create":
                state.update(
                    Id="c",
                    State="created",
                    Names=["/c"],
                    Labels=json.loads(given)["Labels"],
                    Created=1,
                    NetworkSettings={"Networks": {}},
                )
                return 201, [{"Id": "c", "Warnings": []}]
            if path == "/containers/c/json":
                now = {"Status": state["State"], "Paused": False, "Running": state["State"] == "running"}
                return 200, [{"Id": "c", "State": now, "HostConfig": {"PidsLimit": 0}}]
            if path.endswith("/start"):
                state["State"] = "running"
                return 204, []
            if path.startswith("/images/tracebed-node:"):
                return 404, [{"message": "No such image"}]
            if path.startswith("/images/"):
                return 200, [{"Id": "sha256:00"}]
            return 200, [[]] if path == "/networks" else [{"Id": "n"}]

        def address_string(self) -> str:
            return "stand-in"

        def log_message(self, *given: object) -> None:
            """Print nothing."""

    with socketserver.ThreadingUnixStreamServer(str(socket), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"unix://{socket}"
        finally:
            server.shutdown()
            thread.join()
