"""Comparing where containers run with what was decided for them."""
