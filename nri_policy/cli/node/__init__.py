"""Commands about one node: its daemon, its machine, its containers."""
