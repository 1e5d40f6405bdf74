"""The studies of papers with their ledgers, and the board."""
