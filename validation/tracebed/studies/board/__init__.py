"""The board: data sets of real runs by other people, entries that predict them, and their scores."""
