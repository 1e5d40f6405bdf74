"""The live view of a replay, from another process than the replay: its journal, pictures of it, and OpenMetrics."""

from __future__ import annotations

from tracebed.orchestrator.watching.follower import JournalFollower
from tracebed.orchestrator.watching.openmetrics import Metrics
from tracebed.orchestrator.watching.picture import line, picture, snapshot
from tracebed.orchestrator.watching.view import View

__all__ = ["JournalFollower", "Metrics", "View", "line", "picture", "snapshot"]
