"""The control service: what the daemon holds, why, and what would be if; proto/control.proto.

Others import from these modules:

| module | what it has |
|---|---|
| `administration` | what changes something on demand |
| `client` | the other end of the control service, for commands |
| `decision_log` | what was decided lately, as far as the engine's state does not say it |
| `endpoint` | one gRPC server for all that it serves there |
| `health` | the standard gRPC health service: whether the daemon knows its containers and serves |
| `reflection` | the standard gRPC reflection service |
| `service` | answers from a view of the node |
"""
