"""The kubelet: what it says about pods, and what it would request from the runtime for a pod.

Owns its APIs and its arithmetic. It must not know where a container is placed.

Others import from these modules:

| module | what it has |
|---|---|
| `device_counts` | the number of devices of each resource on each NUMA node, all and free |
| `manifest_pods` | turns manifests into the containers that a runtime would send to a plugin |
| `pod_objects` | the requests of a pod's containers, from its object in the API server |
| `pod_resources` | the kubelet's PodResources API: the devices that it assigned to containers |
| `resize_steps` | the steps in which a kubelet resizes a pod in place |
| `runtime_requests` | what the kubelet requests from a runtime for a pod, from its manifest |
| `runtimespec` | what containerd and CRI-O add to these requests before plugins see them |
"""
