"""The host: its kernel, its classes, permissions, and what could not be read."""
