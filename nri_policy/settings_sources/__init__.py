"""The sources of settings while the daemon runs: a file, and objects of the cluster.

Owns when settings are read again. It must not know what a setting means.

Others import from these modules:

| module | what it has |
|---|---|
| `cluster_settings` | its TopologyAwarePolicy objects, followed as long as the daemon runs |
| `file` | a file of settings that may be replaced at any time |
| `kubernetes` | the API server's side of settings from the cluster |
"""
