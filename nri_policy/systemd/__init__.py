"""systemd's manager: sets properties of running scopes over D-Bus.

Owns the connection and its messages. It must not know why a container has its CPUs.

Others import from these modules:

| module | what it has |
|---|---|
| `scopes` | sets the CPUs and memory nodes of a container's scope, so that systemd keeps them |
"""
