"""How the daemon shows how it is: metrics, probes, watchdog, the service manager, logs.

Others import from these modules:

| module | what it has |
|---|---|
| `decision_events` | decisions as events of their pods: one line each, for `kubectl describe pod` |
| `endpoint` | probes and metrics |
| `exporter` | one scrape, from the daemon's loop to a text |
| `logs` | one line a record on stderr, as key=value or as JSON |
| `metrics` | what is counted on the way, with one method for each thing to count |
| `service_manager` | what systemd is told of the daemon, by its notification protocol |
| `watchdog` | whether the loop that serves requests comes round, and its turn with it; how late |
"""
