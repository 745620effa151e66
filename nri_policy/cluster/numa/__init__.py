"""NUMA zones of nodes: whether they hold a pod, and what is promised of them.

Owns what is free in zones between a node's reports, the verbs of the scheduler extender, and the
admission check for Kueue. It limits where the engine of groups may place; it must not know which
groups wait, nor how requests arrive or the API is watched: `service` does.
"""
