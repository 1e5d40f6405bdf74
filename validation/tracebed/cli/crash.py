"""Report of an internal error: one line, and a file with the traceback."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tracebed.cli.messages import one_line

TRACEBACK = "TRACEBED_TRACEBACK"
"""Environment variable: any value but "" and "0" prints the traceback in place of writing it to a file."""


def report(error: Exception, *, shown: bool = False) -> str:
    """Return the line to print for `error`, after its traceback was written to a file.

    Args:
        error: the error as it was caught.
        shown: print the traceback to standard error in place of writing it. `TRACEBED_TRACEBACK` does the same.
    """
    from tracebed.ground.version import version

    what = one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    facts = f"tracebed {version()}, Python {sys.version.split()[0]}"
    text = "".join(traceback.format_exception(error))
    if shown or os.environ.get(TRACEBACK, "0") not in ("", "0"):
        sys.stderr.write(text)
        return f"internal error: {what} ({facts}; report this line and the traceback above)"
    path = _written(f"{facts}, {sys.platform}\ncommand: {sys.argv}\n\n{text}")
    if path is None:
        return f"internal error: {what} ({facts}; report this line, and the traceback, which {TRACEBACK}=1 prints)"
    return f"internal error: {what} ({facts}; report this line and the traceback in {path})"


def _written(text: str) -> Path | None:
    """Write `text` to a new file in the folder of states, or of temporary files; None if neither can be written."""
    home = os.environ.get("XDG_STATE_HOME") or f"{os.environ.get('HOME', '')}/.local/state"
    for folder in (Path(home, "tracebed"), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stamp = time.strftime("%Y%m%d-%H%M%S")
            handle, name = tempfile.mkstemp(".txt", f"tracebed-crash-{stamp}-", folder)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return Path(name)
    return None
