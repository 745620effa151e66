"""Kubernetes objects, as people write them and as the API server has them, each read in one place.

| module | what it has |
|---|---|
| `api_object` | the identity of objects |
| `fields` | mistyped fields, which a reader of some fields would ignore in silence |
| `pod` | a Pod as the API server would take it |
| `pod_object` | a Pod as the API server has it |
| `quality_of_service` | the quality-of-service classes of pods |
| `resource_claim` | ResourceClaims and their templates |
| `resources` | what containers and pods request, and what they are limited to |
| `workloads` | how many pods an object with one template makes |
"""
