"""The board: errors of simulators on real runs by other people."""

from tracebed.studies.board.board import FILE, WAIT, Board, Score
from tracebed.studies.board.board import interval as interval_text
from tracebed.studies.board.board import number as number_text
from tracebed.studies.board.board import share as share_text
from tracebed.studies.board.building import build as build_board
from tracebed.studies.board.entries import EntryFile, load_entries
from tracebed.studies.board.page import lanes as lanes_of
from tracebed.studies.board.page import page as page_of_board
from tracebed.studies.board.page import plot as plot_of_board
from tracebed.studies.board.page import write as write_board

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
