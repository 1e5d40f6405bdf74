"""The files of runs: schemas of their tables, checks, replacement, and the working folders of replays."""
