"""The sources of settings while the daemon runs: a file, and objects of the cluster.

Owns when settings are read again. It must not know what a setting means.

Others import from these modules:

| module | what it has |
|---|---|
| `cluster_settings` | watches the cluster's TopologyAwarePolicy objects of a node |
| `kubernetes` | reads and patches these objects in the API server |
| `settings_file` | a file of settings that may be replaced at any time |
"""
