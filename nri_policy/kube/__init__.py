"""The Kubernetes API: how a cluster is reached, what is asked of it, and what it answers."""
