"""From records to a workload: cleaning steps, recipes of them, and the audit of what they did."""
