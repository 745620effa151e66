"""Where settings come from while the daemon runs.

Others import from these modules:

| module | what it has |
|---|---|
| `cluster_settings` | its TopologyAwarePolicy objects, followed as long as the daemon runs |
| `file` | a file of settings that may be replaced at any time |
| `kubernetes` | the API server's side of settings from the cluster |
"""
