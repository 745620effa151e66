"""systemd's manager: setting a running scope's properties over D-Bus.

Others import from these modules:

| module | what it has |
|---|---|
| `scopes` | sets the CPUs and memory nodes of a container's scope, so that systemd keeps them |
"""
