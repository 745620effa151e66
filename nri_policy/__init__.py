"""Topology-aware CPU and memory placement for Kubernetes nodes, through NRI."""
