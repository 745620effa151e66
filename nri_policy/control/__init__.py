"""The control service: what the daemon holds, why, and what would be if; proto/control.proto.

The answers are the daemon's, in `daemon/control.py`.

Others import from these modules:

| module | what it has |
|---|---|
| `administration` | what changes something on demand |
| `client` | the other end of the control service, for commands |
| `decision_log` | what was decided lately, as far as the engine's state does not say it |
| `endpoint` | the gRPC server behind the daemon's own socket |
| `handler` | what a gRPC server needs to offer a service's methods |
| `health` | the standard gRPC health service: whether the daemon knows its containers and serves |
| `listener` | the daemon's own socket, and when the server behind it starts |
| `name` | finds the container or pod that a name means |
| `reflection` | the standard gRPC reflection service |
"""
