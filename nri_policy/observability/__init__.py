"""Observability: the daemon's metrics, probes, watchdog, logs, and messages to systemd.

Owns how the daemon's state is shown to other programs. It must not change anything.

Others import from these modules:

| module | what it has |
|---|---|
| `decision_events` | decisions as events of their pods, for `kubectl describe pod` |
| `endpoint` | the HTTP endpoint with probes and metrics |
| `exporter` | makes the text of a scrape |
| `logs` | writes one line per record to stderr, as key=value or JSON |
| `metrics` | the counters, with a method for each thing to count |
| `service_manager` | notifies systemd of the daemon's state |
| `watchdog` | checks that the event loop runs and requests end; measures how late it runs |
"""
