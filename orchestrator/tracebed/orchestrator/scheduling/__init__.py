"""The pure wing: cluster, policies, runtime models, scheduler and simulator. No clock, no I/O."""
