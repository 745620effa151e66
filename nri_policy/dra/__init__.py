"""Dynamic resource allocation (`resource.k8s.io`): the devices that claims give to containers.

Others import from these modules:

| module | what it has |
|---|---|
| `claims` | which devices the containers of a pod were allocated |
| `slices` | the devices that drivers publish of this node, and where these are |
"""
