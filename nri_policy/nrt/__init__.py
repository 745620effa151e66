"""NodeResourceTopology: the free resources of the node, published for schedulers; spec nrt.md.

Owns the object and its copies: what is in it, and when each copy is written. It reads views of the
node; it must not know how the engine decides, or what the runtime is sent.

Others import from these modules:

| module | what it has |
|---|---|
| `cluster_object` | the object in the cluster, written by server-side apply |
| `topology_file` | the object as a JSON file, for readers on the node |
| `fingerprint` | the fingerprint of the pods on a node, for schedulers |
| `numaplacement` | the NUMA nodes of containers, as they are listed in the object |
| `publisher` | one task for each copy, which writes it after changes |
| `reading` | the node's state at one moment, and the NodeResourceTopology object made from it |
| `topology` | the node's NodeResourceTopology object and its copies |
"""
