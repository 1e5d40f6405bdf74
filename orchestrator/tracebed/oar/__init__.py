"""OAR as a batch system."""
