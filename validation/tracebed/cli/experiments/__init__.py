"""`tracebed experiment`, and the tables of its views."""
