"""The objects of a cluster as its side sees them: nodes, pods, zones, groups, settings."""
