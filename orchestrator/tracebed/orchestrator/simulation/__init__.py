"""The scheduler in virtual time: simulator, runtime models, prediction, and the compiled engine."""
