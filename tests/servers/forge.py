"""Stand-ins for the interfaces of GitHub and GitLab that list, create and update comments on a pull request.

They follow the documentation: "REST API endpoints for issue comments" of GitHub, "Notes API" of GitLab. Among these are
the paths, methods and statuses, the header of the token, the pages of a list, their order, and the longest comment.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

TOKEN = "token-of-the-job"
REPOSITORY, PROJECT, NUMBER = "lab/simulator", "42", "7"


@dataclass(frozen=True)
class Interface:
    """What distinguishes one interface from the other."""

    many: str  # pattern of the path of the list
    one: str  # pattern of the path of a comment, with its id as group
    update: str  # method
    page: int  # comments of a page by default
    newest_first: bool
    longest: int  # characters
    author: str


INTERFACES = {
    "github": Interface(
        f"/repos/{REPOSITORY}/issues/{NUMBER}/comments",
        rf"/repos/{REPOSITORY}/issues/comments/(\d+)",
        *("PATCH", 30, False, 65_536, "user"),
    ),
    "gitlab": Interface(
        f"/api/v4/projects/{PROJECT}/merge_requests/{NUMBER}/notes",
        rf"/api/v4/projects/{PROJECT}/merge_requests/{NUMBER}/notes/(\d+)",
        *("PUT", 20, True, 1_000_000, "author"),
    ),
}


@dataclass
class Forge:
    """A server on the loopback. The comments of others are there from the start."""

    name: str
    others: int = 130  # comments of others, on more than one page
    writable: bool = True  # whether the token may write
    broken: bool = False
    bodies: dict[int, str] = field(default_factory=dict)
    methods: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.bodies = {number: f"remark {number}" for number in range(1, self.others + 1)}
        forge = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                forge.answer(self)

            do_POST = do_PATCH = do_PUT = do_GET

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """The address that the CI server gives to its jobs."""
        root = f"http://127.0.0.1:{self._server.server_port}"
        return root if self.name == "github" else f"{root}/api/v4"

    @property
    def own(self) -> dict[int, str]:
        """The comments of jobs."""
        return {number: body for number, body in self.bodies.items() if number > self.others}

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request, which is counted in `methods`."""
        content = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.methods.append(request.command)
        status, answer = self._answer(request, json.loads(content) if content else {})
        text = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def _answer(self, request: BaseHTTPRequestHandler, content: dict[str, Any]) -> tuple[int, Any]:
        own, url, headers = INTERFACES[self.name], urlsplit(request.path), request.headers
        if self.broken:
            return 502, {"message": "Server Error"}
        if self.name == "github":
            known = headers["Authorization"] == f"Bearer {TOKEN}"
            assert headers["Accept"] == "application/vnd.github+json"
            assert headers["X-GitHub-Api-Version"] == "2022-11-28"
            assert headers["User-Agent"]  # requests without one are rejected
        else:
            known = headers["PRIVATE-TOKEN"] == TOKEN
        if not known:
            return 401, {"message": "Bad credentials" if self.name == "github" else "401 Unauthorized"}
        if request.command == "GET" and url.path == own.many:
            query = {name: int(values[0]) for name, values in parse_qs(url.query).items()}
            size = min(query.get("per_page", own.page), 100)
            first = (query.get("page", 1) - 1) * size
            numbers = sorted(self.bodies, reverse=own.newest_first)[first : first + size]
            return 200, [self._comment(number) for number in numbers]
        if not self.writable:
            return 403, {
                "message": "Resource not accessible by integration" if self.name == "github" else "403 Forbidden"
            }
        if len(content.get("body", "")) > own.longest:
            return 422, {"message": "Validation Failed"}
        if request.command == "POST" and url.path == own.many:
            number = max(self.bodies, default=0) + 1
            self.bodies[number] = content["body"]
            return 201, self._comment(number)
        found = re.fullmatch(own.one, url.path)
        if request.command == own.update and found and int(found[1]) in self.bodies:
            self.bodies[int(found[1])] = content["body"]
            return 200, self._comment(int(found[1]))
        return 404, {"message": "Not Found"}

    def _comment(self, number: int) -> dict[str, Any]:
        return {"id": number, "body": self.bodies[number], INTERFACES[self.name].author: {"id": 1}}
