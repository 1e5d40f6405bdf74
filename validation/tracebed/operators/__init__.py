"""What operators ask: what a change of the cluster would bring, and when jobs will start."""
