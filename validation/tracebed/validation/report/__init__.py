"""The report of a comparison: one self-contained HTML file of sections."""
