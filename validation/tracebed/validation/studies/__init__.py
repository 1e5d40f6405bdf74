"""Studies: grids of workloads, malleable shares, policies and seeds, simulated and compared with published figures."""
