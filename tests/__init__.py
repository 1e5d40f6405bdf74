"""The tests, in the rooms of the product; oracles, servers and recorders of real runs beside them."""
