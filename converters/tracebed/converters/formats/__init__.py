"""File formats of workloads and logs, one module per format, registered in `format`."""
