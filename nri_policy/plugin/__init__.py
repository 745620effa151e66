"""The NRI plugin: the runtime's events to the engine, its decisions back, and in force.

Others import from these modules:

| module | what it has |
|---|---|
| `claims` | claims of our own devices: holding them, and which containers use them |
| `convert` | NRI messages to the engine's values and back |
| `cpuset_files` | writes the CPUs of cgroups, those of version 1 with what is below them |
| `daemon_events` | what happens to a node without the runtime: time, settings, hardware |
| `decisions` | events to the node, and the log of what was decided |
| `equipment` | what the host can do for classes, as the kernel and the OCI runtime say |
| `exposure` | what containers are told of themselves: `/.nri-resource-policy/resources.sh` |
| `findings` | what a look at the cgroups showed that should not be, for all who are to know |
| `overlaps` | finds containers on CPUs that are somebody else's own, however they came there |
| `parts` | what takes part in the requests of one runtime, put together once |
| `plugin` | NRI requests to engine events, decisions to adjustments and updates |
| `pod_quotas` | takes the CFS quota from the cgroups of pods, and gives it back |
| `pods` | the sandboxes there are, and what counts for a whole pod |
| `sources` | what is asked beside the runtime |
| `update_queue` | what the runtime has not heard of its containers, and how it hears |
"""
