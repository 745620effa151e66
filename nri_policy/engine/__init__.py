"""The decisions: pure, deterministic, transactional.

Others import from these modules:

| module | what it has |
|---|---|
| `claims` | what parts of resource claims hold, as a store would say it |
| `classification` | which classes containers are in, and what the runtime hears of that |
| `criteria` | the table of criteria by which pools are compared |
| `engine` | events in, decisions out |
| `event` | what can happen to a node, as values |
| `explanation` | why a container is where it is |
| `grant` | what the engine gives out |
| `layout` | what follows from the machine and the settings alone, made once and then only read |
| `listing` | a container as the runtime lists it, against what is known of it |
| `placement_notes` | what a container got less of than it asked for |
| `quota` | the CFS quota of containers that have nothing but CPUs of their own |
| `requested` | what a container asks for, by the settings in force |
| `shortage` | why a request cannot be met |
| `state` | who holds what; for `node` alone |
| `topology_hints` | what hints are worth at each pool, and what they demand |
"""
