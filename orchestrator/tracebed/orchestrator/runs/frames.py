"""The tables of a run as pandas frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Frame:
    """An attribute of a run: a table as a frame, made when it is first read. From then on, it is the table."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, run: Any, owner: type[Any]) -> pd.DataFrame:
        frames: dict[str, pd.DataFrame] = run.frames
        if self.name not in frames:
            frames[self.name] = run.tables[self.name].frame()
        return frames[self.name]

    def __set__(self, run: Any, frame: pd.DataFrame) -> None:
        run.frames = {**run.frames, self.name: frame}  # a copy of the run keeps its own
