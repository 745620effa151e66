"""Pods and containers for the engine: their requests, annotations and topology hints.

Owns what a container asks for, from all sources. It must not know pools, capacities or decisions.

Others import from these modules:

| module | what it has |
|---|---|
| `affinity` | the containers that a container should be near to, or far from |
| `amounts` | a container's requests and limits, by the best source |
| `annotation_table` | the annotations: keys, accepted values, effects and texts |
| `annotation_values` | the readers of annotation values |
| `annotation_warnings` | remarks on annotations that may not do what their author expects |
| `annotations` | the forms of annotation keys, and their precedence |
| `claim` | the parts of resource claims with devices of ours |
| `crio_annotations` | the annotations of CRI-O that are served in some namespaces |
| `hints` | CPUs and NUMA nodes near a container's devices and volumes |
| `peers` | an index of the containers with a grant, for expressions of affinities |
| `pod` | pods and containers as the runtime describes them |
| `preferences` | the typed annotations for one container |
| `request` | what a container is entitled to, and what steers the choice |
| `request_reader` | reads all that a container asks for, under the settings of a node |
| `requirements` | requests and limits as in the pod's manifest |
"""
