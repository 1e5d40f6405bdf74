"""Downloads of single files, with limits of time and size. The caller verifies the content."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request

from tracebed.ground.errors import InputError

TIMEOUT_S = 60.0
"""Longest time for one file, s: from the connection to the last byte."""
CHUNK = 2**16
"""Bytes that are read at once. The time is checked between two chunks."""
LOCAL = "give a local copy of the files: --from FOLDER"


def download(address: str, *, largest: int, timeout_s: float = TIMEOUT_S) -> bytes:
    """Return the content of the file at an address. The file is asked for once; nothing is repeated.

    Args:
        address: address of the file (https).
        largest: largest size, bytes.
        timeout_s: longest time, s.

    Raises:
        InputError: the server cannot be reached, has no such file, is too slow or sends too much, or the connection is
            cut. The message names the address, and a local copy as the way out.
    """
    deadline = time.monotonic() + timeout_s
    too_slow = InputError(f"was not complete after {timeout_s:g} s", where=address, hint=LOCAL)
    content = bytearray()
    try:
        with urllib.request.urlopen(address, timeout=timeout_s) as answer:
            while chunk := answer.read1(CHUNK):
                content += chunk
                if len(content) > largest:
                    raise InputError(f"is larger than {largest:,} bytes", where=address, hint=LOCAL)
                if time.monotonic() > deadline:
                    raise too_slow
            announced = answer.length  # bytes of the announced length that did not come
    except urllib.error.HTTPError as error:
        what = f"the server answers {error.code} {error.reason}"
        error.close()
        raise InputError(what, where=address, hint=LOCAL) from error
    except TimeoutError as error:
        raise too_slow from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise too_slow from error
        raise InputError(f"cannot be reached: {error.reason}", where=address, hint=LOCAL) from error
    except (http.client.HTTPException, OSError) as error:
        raise InputError(f"the connection was cut: {error}", where=address, hint=LOCAL) from error
    if announced:
        raise InputError(f"the connection was cut after {len(content):,} bytes", where=address, hint=LOCAL)
    return bytes(content)
