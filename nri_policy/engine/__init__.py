"""The engine: takes events, returns decisions; pure, deterministic and transactional.

Owns the grants of CPUs and memory. It must not know protocols, files, clocks or clusters.

Others import from these modules:

| module | what it has |
|---|---|
| `updates.classification` | the classes of containers, and the updates for them |
| `choice.criteria` | the table of criteria by which pools are compared |
| `engine` | takes events, returns decisions |
| `event` | the events of a node, as values |
| `explanation` | the reasons of a decision |
| `grant` | grants, placements and decisions |
| `state.layout` | what follows from the machine and the settings alone; made once, then only read |
| `restart.listed_container` | merges a container in the runtime's list with what is known of it |
| `state.partitions` | which containers are to be kernel partitions |
| `choice.placement_notes` | notes on what a container has less of than it asked for |
| `state.quota` | the CFS quota of containers with only exclusive CPUs |
| `requests.request_reader` | reads the request of a container under the settings |
| `placement.resource_claims` | cuts and releases the CPUs of resource claims |
| `choice.shortage` | the errors of requests that cannot be met |
| `state.state` | the grants and bookings; for `node` alone |
| `state.topology_hints` | scores pools by hints, and finds the bounds of strict ones |
"""
