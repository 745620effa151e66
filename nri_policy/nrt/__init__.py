"""NodeResourceTopology: what the node has left, published for schedulers; spec nrt.md.

Others import from these modules:

| module | what it has |
|---|---|
| `cluster_object` | the object in the cluster, written by server-side apply |
| `topology_file` | the object as a JSON file, for who reads it on the node itself |
| `fingerprint` | the fingerprint of the pods on a node, for schedulers |
| `publisher` | one task that keeps a copy of the object somewhere as the engine has it |
| `reading` | what the engine held at one moment, and the NodeResourceTopology object made of it |
| `topology` | the node's NodeResourceTopology object, and the copies of it that are kept |
"""
