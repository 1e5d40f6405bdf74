"""The test whether the rank of one node can connect to a rank of another node."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Any

from tracebed.benchmarks.lines import Mailbox
from tracebed.orchestrator.testbeds.agent.launching import bindable, connectable
from tracebed.orchestrator.testbeds.agent.messages import MessageFields
from tracebed.orchestrator.testbeds.agent.outbox import Outbox

CONNECT_S = 5.0
"""Time in which a connection must be made, s."""


class ConnectionTest:
    """The port that other nodes try to reach, and the attempts of this node.

    Args:
        selector: the selector of the agent.
        outbox: the events of the agent.
    """

    def __init__(self, selector: selectors.BaseSelector, outbox: Outbox) -> None:
        """Start without an open port."""
        self._selector, self._outbox = selector, outbox
        self._server: socket.socket | None = None
        self._mailbox: Mailbox | None = None

    def test(self, message: dict[str, Any]) -> None:
        """Listen on the address `bind`, or connect to `address`. Without either, stop listening."""
        fields = MessageFields(message)
        if "address" in fields:
            self._connect(connectable(fields.value("address")))
            return
        if self._server is not None:
            self._server.close()
            self._server = None
        if "bind" in fields:
            self._listen(bindable(fields))

    def _listen(self, host: str) -> None:
        """Listen on a free port. The kernel completes connections, so none has to be accepted."""
        self._server = socket.socket()
        try:
            self._server.bind((host, 0))
            self._server.listen()
        except OSError as error:
            self._outbox.send_unnumbered("reached", reason=f"no rank can listen on {host}: {error.strerror}")
        else:
            self._outbox.send_unnumbered("reachable", address=list(self._server.getsockname()))

    def _connect(self, address: tuple[str, int]) -> None:
        """Connect in the background. The event `reached` has the reason of a failure."""
        mailbox = self._mailbox = self._mailbox or Mailbox(self._selector)

        def connect() -> None:
            reason = None
            try:
                with socket.socket() as peer:
                    peer.settimeout(CONNECT_S)
                    peer.connect(address)
            except OSError as error:
                reason = f"no connection to {address[0]} port {address[1]}: {error.strerror or error}"
            mailbox.post(lambda: self._outbox.send_unnumbered("reached", reason=reason))

        threading.Thread(target=connect, daemon=True).start()
