"""Clusters and jobs that do not exist, and playing what happens in them."""
