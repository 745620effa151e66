"""The engine: takes events, returns decisions; pure, deterministic and transactional.

Owns the grants of CPUs and memory. It must not know protocols, files, clocks or clusters.

Its rooms, from the top; each may use those below it:

- `lifecycle`: what an event in the life of a container changes
- `restart`: places all containers again, also under new settings
- `pods`: pod rooms, and the amounts of pods as a whole
- `placement`: books what was chosen, and moves other containers
- `choice`: compares pools, picks CPUs and memory, or says what is missing
- `updates`: what the runtime is sent
- `state`: the layout, the grants and bookings

Others import from these modules:

| module | what it has |
|---|---|
| `choice.criteria` | the table of criteria by which pools are compared |
| `choice.placement_notes` | notes on what a container has less of than it asked for |
| `choice.shortage` | the errors of requests that cannot be met |
| `engine` | takes events, returns decisions |
| `event` | the events of a node, as values |
| `explanation` | the reasons of a decision |
| `grant` | grants, placements and decisions |
| `placement.resource_claims` | cuts and releases the CPUs of resource claims |
| `restart.listed_container` | merges a container in the runtime's list with what is known of it |
| `state.layout` | what follows from the machine and the settings alone; made once, then only read |
| `state.partition_rules` | which containers are to be kernel partitions |
| `state.quota` | the CFS quota of containers with only exclusive CPUs |
| `state.state` | the grants and bookings; for `node` alone |
| `state.topology_hints` | scores pools by hints, and finds the bounds of strict ones |
| `updates.classification` | the classes of containers, and the updates for them |
"""
