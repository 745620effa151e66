"""The decisions: pure, deterministic, transactional.

Others import from these modules:

| module | what it has |
|---|---|
| `classification` | which classes containers are in, and what the runtime hears of that |
| `comparison` | which pools can hold a request, and which of them is best |
| `criteria` | the table of criteria by which pools are compared |
| `engine` | events in, decisions out |
| `event` | what can happen to a node, as values |
| `explanation` | why a container is where it is |
| `grant` | what the engine gives out |
| `layout` | what follows from the machine and the settings alone, made once and then only read |
| `nearness` | what hints are worth at each pool, and what they demand |
| `placement` | choosing the pool and the CPUs of one request |
| `requested` | what a container asks for, by the settings in force |
| `state` | who holds what; for `node` alone |
| `synchronization` | finding every running container its place again |
"""
