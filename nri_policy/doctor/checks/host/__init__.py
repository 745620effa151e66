"""The host: its kernel, its classes, its partitions, permissions, and what could not be read."""
