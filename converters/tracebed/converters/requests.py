"""Requests of evolving jobs: how many nodes a job asks for, and when."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from tracebed.ground.errors import InputError


class Request(NamedTuple):
    """A request of an evolving job for nodes, in place of those that it holds."""

    share: float
    """Share of the work of the job that is done when the job asks, above 0 and below 1."""
    nodes: int
    """Number of nodes that the job wants to have, at least 1."""

    def point(self, iterations: int) -> int:
        """Return the number of iterations after which a job with `iterations` iterations of equal work asks."""
        return math.ceil(self.share * iterations * (1.0 - ROUNDING))


ROUNDING = 1e-9
"""Largest rounding error of a share of the work."""
HINT = "write share:nodes with ascending shares between 0 and 1, as in 0.25:6 0.5:2"


def parse_requests(text: str) -> tuple[Request, ...]:
    """Return the requests in a text such as `0.25:6 0.5:2`: 6 nodes after a quarter of the work, then 2 after half."""
    requests = tuple(map(_parse_request, text.split()))
    if any(after.share <= before.share for before, after in pairwise(requests)):
        raise InputError(f"the shares of the requests {text[:40]!r} do not ascend", hint=HINT)
    return requests


def _parse_request(text: str) -> Request:
    share, colon, nodes = text.partition(":")
    try:
        request = Request(float(share), int(nodes))
    except ValueError:
        request = Request(math.nan, 0)
    if not colon or not 0.0 < request.share < 1.0 or request.nodes < 1:
        raise InputError(f"invalid request {text[:40]!r}", hint=HINT)
    return request


def format_requests(requests: tuple[Request, ...]) -> str:
    """Return the text from which `parse_requests` reads `requests`."""
    return " ".join(f"{request.share!r}:{request.nodes}" for request in requests)
