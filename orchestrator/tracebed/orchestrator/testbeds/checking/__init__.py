"""The nodes of an inventory without a replay: their preparation, facts and health."""
