"""The embedded NRI runtime: the other side of the wire, for demo, simulation and tests."""
