"""Interactive charts of the report: zoom, hover and search for a job, in place of the static figures.

The data of the charts and the scripts are in the page. A page without script, and a printed page, shows the static
figures.
"""

from __future__ import annotations

from tracebed.validation.report.interactive.page import POLICY, Charts, charts

__all__ = ["POLICY", "Charts", "charts"]
