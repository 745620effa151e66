"""The engine of the cluster side: trees, what is used in them, and where groups go. No I/O."""
