"""The line in the output of a program that says why the program failed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

LONGEST = 500  # longest reason, characters
MOST_READ = 2**20  # part of the output in which the reason is looked for, at its end, bytes
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TRACEBACK = re.compile(r"(?m)^.*Traceback \(most recent call last\):[ \t]*$")
_RAISED = re.compile(r"(?m)^(?: *\| )?([A-Za-z_][\w.]*(?::.*)?)$")
_OF_A_CHILD = re.compile(r"(\w+\.)*CalledProcessError\b")
_NOISE = re.compile(
    r"\s*(at |File \"|\^|note: |Node\.js v\d|\(Use `node|Require stack|stack backtrace|Stacktrace|goroutine \d"
    r"|exit status|Command exited|make(\[\d+\])?: \*\*\*|Aborted|Execution halted|npm (ERR!|error) (code|errno)"
    r"|.*?\b(Deprecat|Experimental|Future|User|Runtime)\w*Warning\b|.*?\bwarn(ing)?\b|[\W_]*$)",
    re.IGNORECASE,
)
"""Lines that say nothing about a failure: frames of a stack, banners, warnings, and what follows a failure."""
_STATED: tuple[re.Pattern[str], ...] = tuple(
    map(
        re.compile,
        (
            # a crash, in the words of the run-time system: Java, .NET, C++, Rust, Go, Node, sanitizers
            r"Exception in thread |Unhandled exception|\s*what\(\):|.*\bpanicked at |panic: |fatal error: "
            r"|FATAL ERROR: |.*\bterminat\w+ due to uncaught exception|.*\bERROR: \w+Sanitizer: |.*: runtime error: "
            r"|.*\bAssertion .* failed",
            # an exception or an error at the beginning of a line: Node, Java, Rust, Julia, R, Octave
            r"(Uncaught )?(\w+[.:])*\w*(Error|Exception|ERROR|error)\b( \[\w+\]| in .*?)?( ?: ?\S|\b: *$)",
            # a level of a log, or `PROGRAM: error: ...`: compilers, argparse, SimGrid; no figure such as `error: 0.1`
            r"(?i).*(\[(error|fatal|critical)\]|/(error|critical)\])",
            r"(?i)(.*(: |\] ))?(error|fatal|critical) ?:(?! *[-+.\d]+ *%?$)",
            r".*\b(ERROR|FATAL|CRITICAL)\b",
            r"terminate called|.*\b(Segmentation fault|Killed|core dumped|out of memory|Bus error)\b",
            # the shell, and messages of the operating system
            r"(?i).*(\b(not found|no such file|permission denied|unbound variable|syntax error|is a directory"
            r"|cannot|can't|could not|unable to|(?<!\d )failed|invalid|denied)\b)",
        ),
    )
)
"""How programs state an error, the most certain form first."""


def reason_in(text: str) -> str:
    """Return the line of a program's output, at most `LONGEST` characters, that states its error; empty without one."""
    # A Python traceback ends with its exception; the last one counts. In other output, the first line in the most
    # certain of the forms `_STATED` is the reason; without any, the last line that is no noise.
    text = _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    raised = ""
    if tracebacks := [*_TRACEBACK.finditer(text)]:
        match = _RAISED.search(text, tracebacks[-1].end())
        raised = match[1] if match else ""
        if raised and not _OF_A_CHILD.match(raised):
            return raised[:LONGEST]
        text = text[: tracebacks[0].start()]  # the program that it started has said why
    lines = [line.rstrip() for line in text.split("\n")]
    kept = [(number, line) for number, line in enumerate(lines) if line.strip() and not _NOISE.match(line)]
    for form in _STATED:
        for number, line in kept:
            if form.match(line):
                return _whole(line, lines[number + 1 :])[:LONGEST]
    return raised[:LONGEST] or (kept[-1][1].strip()[:LONGEST] if kept else "")


def output_of(log: Path) -> str:
    """Return the end of the output of a program in a file."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_READ))
        return file.read().decode("utf-8", "replace")


def _whole(line: str, following: Iterable[str]) -> str:
    """Return the line; with the next one if its text is there, as in a panic of Rust."""
    line = line.strip()
    if not line.endswith(":"):
        return line
    following = (text.strip() for text in following)
    return f"{line} {next((text for text in following if text), '')}".strip()


def status_text(status: int) -> str:
    """Return the exit status of a program that a shell ran: `status 139 (SIGSEGV)`."""
    try:
        name = signal.Signals(abs(status) if status < 0 else status - 128).name
    except ValueError:
        return f"status {status}"
    return f"status {status} ({name})"
