int tracebed_kernels_version(void) { return 1; }
