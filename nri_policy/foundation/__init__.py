"""Tools for all packages: sets of CPUs, amounts, wording, YAML, time.

Owns what knows no other package. It must not know nodes, pods or clusters.

Others import from these modules:

| module | what it has |
|---|---|
| `backoff` | the delay before a failed request is repeated |
| `clock` | time for the event loop, which a test can replace |
| `copies` | shallow copies of objects that differ in some attributes |
| `cpuset` | the one set type for CPU ids and memory node ids, used everywhere |
| `garbage` | pauses of Python's garbage collection while many lasting objects are made |
| `glob` | shell globs with the rules of Go's path/filepath.Match, which users of the peer rely on |
| `grpc_services` | both sides of a gRPC service, made from its descriptor |
| `inotify` | the kernel's notifications of changed files and folders |
| `mismatch` | msgspec's errors about a document of the wrong type, in plain words |
| `mounts` | the file system of a path, and whether a container's host has it too |
| `on_demand` | a resource that is opened for its first user and closed some time after the last |
| `program` | whether the running program is still the installed one |
| `refusal` | the base class of the engine's refusals |
| `shipped` | files that come with the program: the examples in configs/ and the pages in docs/ |
| `singleton` | one instance of the plugin per node: two would fail every creation of a container |
| `threads` | threads that are started early, and the error where there can be no more |
| `tls` | TLS that accepts the certificates that kubectl accepts |
| `units` | amounts as Kubernetes writes them: CPU and memory quantities, durations, times |
| `wording` | quotes outside text in messages: short, on one line, near misses named |
| `yamltext` | reads outside YAML into plain values at a limited cost |
"""
