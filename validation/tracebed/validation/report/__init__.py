"""Reports of a comparison: a table on the console, one self-contained HTML file."""
