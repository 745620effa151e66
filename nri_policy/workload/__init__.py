"""Pods and containers as the engine sees them: requests, annotations, eligibility.

Others import from these modules:

| module | what it has |
|---|---|
| `affinity` | which other containers a container wants near, or far |
| `amounts` | what a container asks for, by the best source there is |
| `annotation_table` | each key, what it accepts, what it steers, and what is said of it |
| `annotation_values` | what each kind accepts, and what it means |
| `annotations` | the forms of annotation keys, and which is in force for a container |
| `claim` | what a resource claim was allocated of our own devices |
| `hints` | which CPUs and NUMA nodes a container had better be near to |
| `peers` | the containers that hold a grant, found by what is known of them |
| `pod` | what the runtime said of them, as the engine sees it |
| `preferences` | what a pod's annotations say about one of its containers, typed |
| `remarks` | what of a pod's annotations does not do what its owner may expect, for people |
| `request` | what a container is entitled to |
| `requirements` | requests and limits in a pod's owner's words |
"""
