"""The control service: the daemon's state and reasons, for commands; proto/control.proto.

Owns the socket, the gRPC server behind it, and their limits. It must not know how an answer is
made: `daemon/control.py` makes the answers.

Others import from these modules:

| module | what it has |
|---|---|
| `administration` | the calls that change something |
| `client` | the client of the control service, for commands |
| `decision_log` | recent refusals, causes of changes, and watchers of decisions |
| `endpoint` | the gRPC server behind the daemon's own socket |
| `health` | the standard gRPC health service |
| `listener` | the daemon's own socket; it starts the gRPC server for the first caller |
| `container_names` | finds the container or pod of a name |
| `reflection` | the standard gRPC reflection service |
"""
