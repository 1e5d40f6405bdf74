"""The state of a job: data that its ranks hold in a block distribution, and that moves when ranks join and leave."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from tracebed.benchmarks.connections import Data
from tracebed.benchmarks.redistribution import Block, Move

PAGE = 2**18  # Size of a page, bytes. The last page of a state may be smaller.
WINDOW = 4  # largest number of pages that are on the way to a rank at the same time


class DistributedState:
    """The pages that a rank holds.

    The content of each page follows from its number, so that every byte can be checked after any number of moves.
    """

    def __init__(self, mib: float) -> None:
        """Hold no pages of a state of `mib` MiB."""
        self.size = round(mib * 2**20)
        self.total = -(-self.size // PAGE)  # number of pages of the state, on all ranks
        self.pages: dict[int, Data] = {}

    def fill(self, block: Block) -> None:
        """Write the pages of `block`, and hold them."""
        table = hashlib.shake_128(b"state").digest(2 * PAGE)
        for page in range(*block):
            self.pages[page] = self._content(page, table)

    def wrong(self) -> list[int]:
        """Return the held pages whose content differs from the content written by `fill`."""
        table = hashlib.shake_128(b"state").digest(2 * PAGE)
        return [page for page, data in self.pages.items() if data != self._content(page, table)]

    def bytes_of(self, plan: Sequence[Move]) -> int:
        """Return the number of bytes that the moves of `plan` move."""
        return sum(min(end * PAGE, self.size) - first * PAGE for _, _, (first, end) in plan)

    def _content(self, page: int, table: bytes) -> bytearray:
        size = min(PAGE, self.size - page * PAGE)
        begin = page * 40_503 % PAGE  # an odd factor: neighbors begin at different bytes of the table
        return bytearray(page.to_bytes(8, "little") + table[begin : begin + size])[:size]


class Moving:
    """The moves of a redistribution, directed by the leader, through which all pages go.

    The leader fetches a page from its rank and passes it on to the new rank, which reports that it has stored the page.
    At most `WINDOW` pages are on the way to a rank, so that a slow rank does not fill the memory of the leader.
    """

    def __init__(
        self,
        plan: Sequence[Move],
        name: str,
        state: DistributedState,
        send: Callable[..., None],
        done: Callable[[], None],
    ) -> None:
        self._name, self._state, self._send, self._done = name, state, send, done
        self._waiting: dict[str, deque[Move]] = defaultdict(deque)
        for move in plan:
            self._waiting[move.target].append(move)
        self._under_way: Counter[str] = Counter()
        self._target: dict[int, str] = {}  # page on its way -> its new rank
        self._left = sum(end - first for _, _, (first, end) in plan)

    def begin(self) -> None:
        """Request the first pages. Without moves, all is done."""
        if not self._left:
            self._done()
        for target in list(self._waiting):
            self._advance(target)

    def fetched(self, page: int, data: Data) -> None:
        """Pass a page on to its new rank, or store it if this is the leader."""
        target = self._target[page]
        if target == self._name:
            self._state.pages[page] = data
            self.stored(page)
        else:
            self._send(target, {"type": "page", "page": page}, data)

    def stored(self, page: int) -> None:
        """Continue after a rank has stored a page."""
        target = self._target.pop(page)
        self._under_way[target] -= 1
        self._left -= 1
        if self._left:
            self._advance(target)
        else:
            self._done()

    def _advance(self, target: str) -> None:
        """Request pages for a rank up to the window."""
        waiting = self._waiting[target]
        while waiting and self._under_way[target] < WINDOW:
            source, _, (page, end) = waiting.popleft()
            if page + 1 < end:
                waiting.appendleft(Move(source, target, Block(page + 1, end)))
            self._under_way[target] += 1
            self._target[page] = target
            if source == self._name:
                self.fetched(page, self._state.pages.pop(page))
            else:
                self._send(source, {"type": "fetch", "page": page})


def answer(state: DistributedState, message: dict[str, Any], data: Data, send: Callable[..., None]) -> bool:
    """Process a message of the leader about the pages of a follower. Return whether the message is about pages."""
    match message["type"]:
        case "fill":
            state.fill(Block(message["first"], message["end"]))
            send({"type": "filled"})
        case "fetch":
            send({"type": "page", "page": message["page"]}, state.pages.pop(message["page"]))
        case "page":
            state.pages[message["page"]] = data
            send({"type": "stored", "page": message["page"]})
        case _:
            return False
    return True
