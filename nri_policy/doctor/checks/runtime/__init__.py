"""The container runtime: NRI, its version, cgroups, and other plugins."""
