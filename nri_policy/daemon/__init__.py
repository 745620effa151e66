"""The daemon of a node: wiring, nothing else.

Others import from these modules:

| module | what it has |
|---|---|
| `places` | where a daemon finds and leaves its files, unless it is told otherwise |
| `build` | wires the adapters to the engine; the only place that knows them all |
| `process` | the process on its host: where settings come from, signals, probes, and the end |
"""
