"""What several formats share: files, columns, fields, amounts, states, JSON."""
