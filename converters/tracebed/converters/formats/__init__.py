"""Files of workloads: one module a format, all of them known to `registry`."""
