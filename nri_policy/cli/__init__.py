"""The nri-policy program: one module a sub-command."""
