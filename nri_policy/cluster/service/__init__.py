"""The service: what it follows and writes in a cluster, and who may ask it."""
