"""Kubernetes objects as people write them, read once for both sides.

| module | what it has |
|---|---|
| `fields` | mistyped fields, which a reader of some fields would ignore in silence |
| `pod` | a Pod as the API server would take it |
| `quality_of_service` | the quality-of-service classes of pods |
| `resources` | what containers and pods request, and what they are limited to |
| `workloads` | how many pods an object with one template makes |
"""
