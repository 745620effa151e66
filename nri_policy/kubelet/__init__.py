"""What the kubelet tells, and what it would ask the runtime for a pod.

Others import from these modules:

| module | what it has |
|---|---|
| `hypothetical` | from manifests to the containers that a runtime would ask a plugin about |
| `pod_objects` | what the containers of a pod ask for, in its owner's words |
| `pod_resources` | the kubelet's PodResources API: which devices it assigned to which container |
| `resizing` | how a kubelet resizes a pod in place: what it asks the runtime for, step by step |
| `resources` | what kubelet asks a container runtime for, from a Pod manifest |
| `runtimespec` | what containerd and CRI-O make of kubelet's requests before plugins see them |
| `stock` | how many devices of each sort every NUMA node has, and has left |
"""
