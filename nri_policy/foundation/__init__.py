"""What both sides stand on: sets of CPUs, amounts, wording, time.

Others import from these modules:

| module | what it has |
|---|---|
| `backoff` | how long to wait before somebody who failed to answer is asked again |
| `clock` | time as the sessions see it, for a test to replace as a whole |
| `cpuset` | the one set type for CPU ids and memory node ids, used everywhere |
| `garbage` | pauses of Python's garbage collection, where much is made and nothing of it dropped |
| `glob` | shell globs with the rules of Go's path/filepath.Match, which users of the peer rely on |
| `grpc_services` | both sides of a gRPC service, made from its descriptor |
| `inotify` | what the kernel tells of changes of files and folders |
| `mismatch` | what is wrong with a document that does not fit its type, in plain words |
| `mounts` | which file system a path is on, and whether the host of a container has it too |
| `on_demand` | what is opened for its first user, and closed when nobody has used it for a while |
| `program` | whether the program that runs is still the one that is installed |
| `refusal` | the base of the errors that the engine answers an event with |
| `shipped` | files that come with the program: the examples in configs/ and the pages in docs/ |
| `singleton` | one instance of the plugin a node: two would fail every creation of a container |
| `units` | amounts as Kubernetes writes them: CPU and memory quantities, durations, moments |
| `wording` | how messages quote what came from outside: short, on one line, near misses named |
| `yamltext` | YAML from outside, read into plain values at a bounded cost |
"""
