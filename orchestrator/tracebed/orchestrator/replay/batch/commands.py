"""Running the commands of a batch system."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from typing import Any

from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.replay.batch.base import Refused

TIMEOUT_S = 60.0  # timeout of a command, wall s

LINES = 3  # number of last lines of the output of a failed command that its error quotes


def run(
    *command: str,
    environment: Mapping[str, str],
    transient: Collection[str] = (),
    refusing: bool = False,
    timeout_s: float = TIMEOUT_S,
    user: int | None = None,
) -> str:
    """Run a command of a batch system, without a shell, and return its output.

    With the number of a `user`, root runs it as this user.

    A retry may succeed after a message with one of the parts `transient` (lower case). If `refusing`, another error is
    final (`Refused`).
    """
    path = shutil.which(command[0], path=environment.get("PATH"))
    if path is None:
        raise InputError(f"{command[0]} is not installed", hint="run tracebed where the batch system is installed")
    identity: dict[str, Any] = {}
    if user is not None:
        known = pwd.getpwuid(user)
        groups = os.getgrouplist(known.pw_name, known.pw_gid)
        identity = {"user": user, "group": known.pw_gid, "extra_groups": groups, "cwd": "/"}
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [path, *command[1:]],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            start_new_session=True,  # Ctrl-C must not end a submission halfway
            **identity,
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{command[0]} took longer than {timeout_s:g} s", transient=True) from error
    except OSError as error:
        raise TestbedError(f"{command[0]} cannot be run: {error.strerror}", transient=True) from error
    if done.returncode == 0:
        return done.stdout
    printed = f"{done.stdout}\n{done.stderr}"
    lines = [re.sub(r"^[\w/.-]+: (error: )?", "", line) for line in printed.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith('Try "')]  # ... --help
    message = "; ".join(lines[-LINES:]) or f"status {done.returncode}"
    if refusing and not any(part in printed.lower() for part in transient):
        raise Refused(f"{command[0]} refused: {message}")
    raise TestbedError(f"{command[0]}: {message}", transient=True)


def option(text: str, command: str, own: Collection[str], example: str) -> str:
    """Return an additional option of a command, from `key=value` or `key`. Those in `own` are not possible."""
    match = re.fullmatch(r"(?:--)?([a-z][a-z-]*)(=[^\x00-\x1f\x7f]*)?", text)
    if match is None:
        raise InputError(f"{text!r} is not an option of {command}", hint=f"write KEY=VALUE, for example {example}")
    if match[1] in own:
        raise InputError(f"the option {match[1]!r} of {command} is set by tracebed, or is not possible in a replay")
    return f"--{match[1]}{match[2] or ''}"
