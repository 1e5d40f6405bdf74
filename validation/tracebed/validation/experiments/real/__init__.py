"""Real cells of an experiment: repeated replays on testbeds, one at a time, in random order."""
