"""The NRI wire: codecs without I/O, the session, what each runtime can do.

Others import from these modules:

| module | what it has |
|---|---|
| `errors` | errors of the wire by the side at fault, statuses of requests |
| `grpc_service` | the Plugin service over gRPC, for runtimes and tools that do not speak ttrpc |
| `mux` | two logical connections over one socket, without I/O |
| `plugin` | the methods behind the RPCs, and the call they run for |
| `release` | which NRI a container runtime ships, and what differs between the versions of NRI |
| `service` | the Plugin service, whatever carries it: from a request's bytes to its response's |
| `session` | connect, register, serve, and come back after a loss |
| `ttrpc` | unary ttrpc calls over one logical connection, without I/O |
| `versions` | which NRI a runtime speaks, and what that means for a plugin |
"""
