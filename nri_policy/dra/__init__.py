"""Dynamic resource allocation (`resource.k8s.io`): the devices that claims give to containers.

Others import from these modules:

| module | what it has |
|---|---|
| `cdi` | the files by which a runtime shows a container's claims |
| `claimed_devices` | which devices the containers of a pod were allocated |
| `cpu_devices` | our own devices: NUMA nodes, and what claims can have of them |
| `driver` | what the kubelet asks of us as a driver, for claims of our own devices |
| `endpoint` | the sockets at which it asks |
| `hypothetical` | what a scheduler would allocate to claims in manifests that are tried |
| `registration` | where the kubelet looks for the driver, and what it has said of it |
| `slice_publisher` | the slice with our own devices |
| `slices` | the devices that drivers publish of this node, and where these are |
"""
