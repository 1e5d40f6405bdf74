"""Studies: a grid of workloads, malleable shares, policies and seeds, simulated and held beside published figures."""
