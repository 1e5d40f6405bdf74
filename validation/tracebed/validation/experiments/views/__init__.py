"""Views of the results of an experiment: plots, published figures, sensitivity, statistics of repetitions, verdicts."""
