"""A virtual testbed: the controller and the agents of tracebed in virtual time, against simulated machines.

The code of the controller and of the agents is the code that replays on real nodes. Simulated are what surrounds it
(`tracebed.ground.system`) and the processes of jobs:

- `kernel`: virtual time, processes with clocks of their own, pipes with latency, selectors, and the threads of the
  controller.
- `machine`: a node, the agents on it, and the processes of jobs.
- `provider`: the provider `virtual`, by which an inventory names virtual nodes.
- `faults`: faults of nodes, drawn from a seed.
"""
