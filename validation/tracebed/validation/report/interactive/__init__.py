"""Scripts of the pages: interactive charts in place of the static figures, figures to save, tables to sort.

The data of the charts and the scripts are in the page. A page without script, and a printed page, shows the static
figures.
"""

from __future__ import annotations

from tracebed.validation.report.interactive.page import POLICY, Scripts, scripts

__all__ = ["POLICY", "Scripts", "scripts"]
