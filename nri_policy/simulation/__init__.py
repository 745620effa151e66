"""A simulated node: the other side of the NRI wire, and scenarios played on it."""
