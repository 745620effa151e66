"""Zones of nodes, read from NodeResourceTopology objects, and what pods ask of them.

Owns the zones that a report lists, which of them are NUMA nodes, which pods a report counts, and
the steps in which a pod asks for amounts. It must not know the state of a cluster: `numa` says
whether the zones of a node hold a pod, and what is promised of them.
"""
