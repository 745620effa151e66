"""NUMA zones of nodes: whether they hold a pod, and what is promised of them."""
