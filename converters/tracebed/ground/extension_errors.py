"""Errors of extensions: an exception raised by a line of another package, or of a file of the user, is told as theirs.

A defect of tracebed is an internal error. A defect of an extension is not: its author reads the file, the line and the
exception. The modules of extensions are noted when the extensions are loaded.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType
from typing import Any

from tracebed.ground.errors import InputError, TracebedError

_EXTENSIONS: dict[str, list[str]] = {}
"""Top-level module that tracebed does not provide -> its extensions, for messages: `policy best-fit`."""
_OF_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EPIPE, errno.EIO, errno.EROFS)
"""Errors of the machine: no extension can prevent a full disk."""
VERBOSE = "-v prints the traceback"


class ExtensionError(InputError):
    """Failure of an extension that tracebed does not provide: the file, the line and the exception."""


def note(extension: str, module: str) -> None:
    """Note that `module` has an extension, named as in messages: `policy best-fit`."""
    if not module.startswith("tracebed."):
        extensions = _EXTENSIONS.setdefault(module.partition(".")[0], [])
        extensions += [] if extension in extensions else [extension]


def place_of(at: CodeType | FrameType) -> str:
    """Return the file and the line of a function, or the present line of a frame."""
    code = at if isinstance(at, CodeType) else at.f_code
    return f"{code.co_filename}:{code.co_firstlineno if isinstance(at, CodeType) else at.f_lineno}"


def extension_error(error: BaseException) -> ExtensionError | None:
    """Return `error` as an error of the extension whose line has raised it; None: no extension has.

    The line is the last one of an extension on the way to the exception, also if it called tracebed or another package.
    """
    origin, name, trace = None, "", error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        file, package = trace.tb_frame.f_code.co_filename, name.partition(".")[0]
        if package in _EXTENSIONS and not file.startswith("<"):  # the methods of a dataclass have no file
            origin = package, f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    if name.startswith("tracebed.testing."):  # a check of an extension has failed, not its code
        return None
    if origin is None or isinstance(error, TracebedError | MemoryError) or getattr(error, "errno", None) in _OF_MACHINE:
        return None
    package, place = origin
    # Which of several extensions has failed is in the line, and not known otherwise.
    what = _EXTENSIONS[package][0] if len(_EXTENSIONS[package]) == 1 else f"package {package}"
    return ExtensionError(f"{what} failed: {in_words(error)}", where=place, hint=f"correct the file; {VERBOSE}")


@contextmanager
def of_extension(*others: type[Exception]) -> Iterator[None]:
    """Raise an exception of the block as an ExtensionError if a line of an extension has raised it, except `others`."""
    try:
        yield
    except others:
        raise
    except (Exception, SystemExit) as error:
        if (failure := extension_error(error)) is None:
            raise
        raise failure from error


def line_of(factory: Any, name: str = "") -> str | None:
    """Return the file and the line of a class, or of its field `name`; None: unknown."""
    import inspect

    try:
        file, (lines, first) = inspect.getsourcefile(factory), inspect.getsourcelines(factory)
    except (OSError, TypeError):
        return None
    field = re.compile(rf"\s*{re.escape(name)}\s*:")
    numbers = (number for number, line in enumerate(lines, first) if name and field.match(line))
    return f"{file}:{next(numbers, first)}"


def in_words(error: BaseException) -> str:
    """Return the type and the text of an exception."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def last_line(trace: TracebackType | None, file: str) -> int | None:
    """Return the last line of `file` in a traceback; None: the traceback has no such line."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def checked(value: Any, kind: type | tuple[type, ...], what: str, function: Any) -> Any:
    """Return `value`, which `function` of an extension (`what`) has returned. Raises ExtensionError if not a `kind`."""
    if isinstance(value, kind):
        return value
    wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
    raise returned(type(value).__name__, what, function, f"return {wanted}")


def checked_members(value: Any, members: Sequence[str], what: str, function: Any) -> Any:
    """Return `value`, which `function` of an extension (`what`) has returned. Raises ExtensionError if it lacks one.

    `members`: methods by which an object is told from one of another kind. A protocol may have optional ones, too.
    """
    absent = [name for name in members if not callable(getattr(value, name, None))]
    if absent:
        lacks = f"{type(value).__name__}, without {', '.join(absent)}"
        raise returned(lacks, what, function, f"return an object with {', '.join(members)}")
    return value


def returned(value: str, what: str, function: Any, hint: str) -> ExtensionError:
    """Return the error for what `function` of an extension (`what`) has returned: `value`, in words."""
    code = getattr(function, "__code__", None)
    where = place_of(code) if isinstance(code, CodeType) else None
    return ExtensionError(f"{what} returns {value}", where=where, hint=hint)
