"""The report of a comparison: a self-contained HTML file with one section per topic."""
