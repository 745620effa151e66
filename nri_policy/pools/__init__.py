"""The pool tree: structure, capacity accounting, CPU picking, scoring.

Others import from these modules:

| module | what it has |
|---|---|
| `affinity_scores` | how the affinities of a container add up over the tree |
| `capacity` | which CPUs the engine may use, and what for |
| `cpu_priority` | which CPUs are fast and which are slow |
| `memory_map` | what each memory node holds, and which nodes a pool's containers start with |
| `memory_offer` | what each pool can offer a request, and which bookings make way |
| `memory` | what is booked on the memory nodes, and what is left |
| `picker` | which CPUs of a set to take |
| `supply` | what every pool has left, and how they compare |
| `tree` | which CPUs and memory nodes belong together |
| `width` | in how many packages, NUMA nodes and L3 domains CPUs lie |
"""
