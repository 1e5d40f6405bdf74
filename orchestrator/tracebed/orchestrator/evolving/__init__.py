"""Evolving jobs: programs of processes and messages, simulated on the nodes and links of a grid."""
