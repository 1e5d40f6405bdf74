"""The picture of a comparison of policies: real gains with their intervals, beside the simulated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tracebed.validation.metrics import all_metrics
from tracebed.validation.pictures import Picture, SeriesStyle, legend, panels

if TYPE_CHECKING:
    from tracebed.validation.verdict.ranking import PolicyComparison


def picture(found: PolicyComparison) -> Picture:
    """Return the picture of the gains of each policy against the first one, a panel per policy."""
    frame = found.to_frame().reset_index()
    known = all_metrics()
    gated = [name for name in frame["metric"].unique() if (margin := known[name].margin) and margin.gate]
    data = frame[frame["metric"].isin(gated)]

    def draw(width: float) -> Figure:
        policies = list(data["policy"].unique())
        title = f"difference from {found.first}, {found.workload}"
        figure, places = panels(len(policies), title, height=1.9, wide=True, width=width)
        for axes, policy in zip(places, policies, strict=True):
            rows = data[data["policy"] == policy]
            at = np.arange(len(rows))
            real, simulated = SeriesStyle.of(0), SeriesStyle.of(1)
            reach = [100 * (rows["change"] - rows["low"]), 100 * (rows["high"] - rows["change"])]
            axes.axvline(0, color="0.5", linewidth=0.8)
            axes.errorbar(
                100 * rows["change"], at, xerr=np.nan_to_num(np.array(reach)), label="real (95 % interval)",
                color=real.color, marker=real.marker, linestyle="none", capsize=2, markersize=4,
            )  # fmt: skip
            if found.predicted:
                axes.plot(
                    100 * rows["simulated"], at + 0.3, label="simulated",
                    color=simulated.color, marker=simulated.marker, linestyle="none", markersize=4,
                )  # fmt: skip
            axes.set_yticks(at, [known[name].label for name in rows["metric"]])
            axes.set_ylim(len(rows) - 0.4, -0.5)
            axes.set_title(policy)
        places[-1].set_xlabel(f"difference from {found.first} (%)")
        legend(figure, places)
        return figure

    def shown() -> pd.DataFrame:
        return data.reset_index(drop=True)

    return Picture(draw, found.caption, f"gains of policies against {found.first}", data=shown)
