"""Pictures of an experiment by real runs: PNG and SVG, with the data that are drawn as CSV."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from tracebed.files import replacing


def save(figure: Figure, data: pd.DataFrame, folder: Path, stem: str) -> Path:
    """Write `stem`.png, .svg and .csv into `folder`, and return the PNG file."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "svg"):
        with replacing(folder / f"{stem}.{suffix}") as stream:
            figure.savefig(stream, format=suffix, dpi=200)
    with replacing(folder / f"{stem}.csv") as stream:
        stream.write(data.to_csv(index=False).encode())
    return folder / f"{stem}.png"
