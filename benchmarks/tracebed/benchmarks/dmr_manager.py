"""Checks of the status over a socket: applications send requests, and the resource manager of the node answers.

    manager = ResourceManager(NodeCpus(administrator))
    with manager:
        subprocess.run(program, env=os.environ | variables | manager.variables)

A request is a line of JSON with the size of the application and its sizes; the answer is a line with the action and the
new size. The socket is in a private folder, so only processes of this user can connect.
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tracebed.benchmarks.dmr import Action, Answer, SizeRange, check_status
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.lines import decode, encode
from tracebed.benchmarks.ownership import DromResult
from tracebed.ground.errors import InputError, TestbedError

ADDRESS = "TRACEBED_DMR"  # environment variable with the path of the socket, for programs
ANSWER_S = 10.0  # longest wait for an answer, s
LONGEST = 4096  # longest request or answer, bytes

# A function of the PID of an application, its size and its sizes, in processors.
Decide = Callable[[int, int, SizeRange], Answer]


def request_decision(path: str, size: int, sizes: SizeRange) -> Answer:
    """Return the answer of the resource manager at the socket `path` to an application at a malleability point."""
    sizes.checked()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(ANSWER_S)
            link.connect(path)
            link.sendall(encode({"size": size, **sizes._asdict()}))
            with link.makefile("rb") as answers:
                message = decode(answers.readline(LONGEST))
        return Answer(Action(message["action"]), message["size"])
    except (OSError, ValueError, KeyError) as error:
        what = f"the resource manager does not answer a check: {str(error) or type(error).__name__}"
        raise TestbedError(what, where=path, hint="see whether the agent of this node still runs") from error


class ResourceManager:
    """The server of the checks, for the time of a `with` statement. It answers one check at a time.

    Args:
        decide: the decision on a check.

    Attributes:
        variables: the environment variables by which programs find the server.
    """

    def __init__(self, decide: Decide) -> None:
        self.variables: Mapping[str, str] = {}
        self._decide, self._lock = decide, threading.Lock()

    def __enter__(self) -> ResourceManager:
        """Start the server. Raises TestbedError if its socket cannot be made."""
        self._folder = tempfile.TemporaryDirectory(prefix="tracebed-dmr-")
        path = Path(self._folder.name) / "socket"
        try:
            self._server = _Server(str(path), self)
        except OSError as error:
            self._folder.cleanup()
            what = f"the socket of the resource manager cannot be made: {error}"
            raise TestbedError(what, where=str(path), hint="set TMPDIR to a folder with a short path") from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.variables = {ADDRESS: str(path)}
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server, and remove the socket."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._folder.cleanup()

    def answer(self, pid: int, line: bytes) -> dict[str, str | int]:
        """Return the answer to the request `line` of a process."""
        try:
            request = decode(line)
            size = request["size"]
            sizes = SizeRange(request["least"], request["preferred"], request["most"]).checked()
            if type(size) is not int or size < 1:
                raise InputError(f"the size {size!r} is invalid")
        except (ValueError, KeyError, InputError) as error:
            return {"error": str(error) or type(error).__name__}
        with self._lock:
            answer = self._decide(pid, size, sizes)
        return {"action": answer.action.value, "size": answer.size}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, path: str, manager: ResourceManager) -> None:
        self.manager = manager
        super().__init__(path, _Request)


class _Request(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer the requests of one connection."""
        credentials = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", credentials)[0]
        while line := self.rfile.readline(LONGEST):
            self.wfile.write(encode(self.server.manager.answer(pid, line)))


class NodeCpus:
    """The decision on checks of programs that hold CPUs of a node: processors are CPUs of the table of the node.

    The CPUs of a program change in the table. The program gets or releases them when it polls.

    Attributes:
        waiting: the least size of each job that waits for CPUs, in the order of the queue. The caller removes started
            jobs.
    """

    def __init__(self, administrator: Administrator) -> None:
        self.administrator = administrator
        self.waiting: list[int] = []

    def __call__(self, pid: int, size: int, sizes: SizeRange) -> Answer:
        """Decide on the CPUs that the process holds. A process with a pending change keeps `size`: it polls first."""
        result, held = self.administrator.mask(pid)
        if result is not DromResult.SUCCESS:
            return Answer(Action.NONE, size)
        free = self.administrator.free()
        answer = check_status(len(held), sizes, len(free), tuple(self.waiting))
        if answer.action is Action.NONE:
            return answer
        cpus = (*held, *free)[: answer.size]
        if self.administrator.set_mask(pid, cpus).error:
            return Answer(Action.NONE, len(held))
        return answer


def address() -> str | None:
    """Return the socket of the resource manager of this program; None: there is no resource manager."""
    return os.environ.get(ADDRESS) or None
