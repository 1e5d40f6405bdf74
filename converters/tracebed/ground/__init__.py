"""What everything stands on: errors, files, tables, registries, and the seam to the operating system."""
