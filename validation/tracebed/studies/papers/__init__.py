"""Experiments by real runs: the experiments of the papers replayed on a testbed, each beside the published figures."""
