"""The scheduling policies, one module per policy or family of policies."""
