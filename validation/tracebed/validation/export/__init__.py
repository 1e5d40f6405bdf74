"""Exports of a run to the formats of other programs: one module a format, found by entry points."""

from tracebed.validation.export.exporter import EXPORTERS, Exporter, export

__all__ = ["EXPORTERS", "Exporter", "export"]
