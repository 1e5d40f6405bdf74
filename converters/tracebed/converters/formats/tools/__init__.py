"""Tools shared by several formats: files, columns, fields, amounts, states, JSON."""
