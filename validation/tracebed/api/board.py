"""The board: errors of simulators on real runs by other people."""

from tracebed.validation.board.board import FILE, WAIT, Board, Score
from tracebed.validation.board.building import build as build_board
from tracebed.validation.board.entries import EntryFile, load_entries
from tracebed.validation.board.page import page as page_of_board
from tracebed.validation.board.page import write as write_board
from tracebed.validation.board.plot import lanes as lanes_of
from tracebed.validation.board.plot import plot as plot_of_board
from tracebed.validation.board.words import interval as interval_text
from tracebed.validation.board.words import number as number_text
from tracebed.validation.board.words import share as share_text

__all__ = [
    "FILE",
    "WAIT",
    "Board",
    "EntryFile",
    "Score",
    "build_board",
    "interval_text",
    "lanes_of",
    "load_entries",
    "number_text",
    "page_of_board",
    "plot_of_board",
    "share_text",
    "write_board",
]
