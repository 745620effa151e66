"""The daemon: its settings, its status, and its place in the cluster."""
