"""Objects that stand for themselves: nodes, pods, budgets, priorities, settings.

Owns the reading of plain values into typed documents, whose errors name the path, and Kubernetes'
rules for one pod and one node: matching, tolerations, effective requests. It must not know groups,
zones or workloads: the rooms above read these.
"""
