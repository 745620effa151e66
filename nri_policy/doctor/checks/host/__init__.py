"""The host: its kernel, its classes, partitions, tuner, permissions, and what could not be read."""
