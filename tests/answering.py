"""Programs that answer each line of their input, for tests that lead them step by step."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Self

from tests.patience import GUARD_S

AFTER_A_LINE = ["sh", "-c", 'read line; exec "$@"', "sh"]
"""Before a command: it starts after the first line, so that CPUs can be prepared for its process."""


class Answering:
    """A program in a process of its own, with pipes."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        self.pid = self.process.pid

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str = "") -> str:
        self.tell(line)
        return self.heard()

    def end(self) -> None:
        """Close the input, and wait for an end with status 0 and without further answers."""
        assert self.process.communicate(timeout=GUARD_S)[0] == ""
        assert self.process.returncode == 0

    def kill(self) -> str:
        """Kill the program, and return its errors."""
        self.process.kill()
        return self.process.communicate()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
