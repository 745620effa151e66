"""The daemon of a node: wires all parts together.

Owns the order in which parts start and stop, and new settings while containers run. No other
package for a node may know it.

Others import from these modules:

| module | what it has |
|---|---|
| `daemon` | wires the adapters to the engine; the only place that knows them all |
| `paths` | the default paths of the daemon's files |
| `process` | the process on its host: the source of settings, signals, probes, and the end |
"""
