"""The scheduler: cluster, queue, policies and priorities. It has no clock and no I/O."""
