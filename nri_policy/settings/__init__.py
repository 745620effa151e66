"""The typed configuration: loading, validation, defaults."""
