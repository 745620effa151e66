"""The NRI plugin: the runtime's events to the engine, its decisions back in answers.

Others import from these modules:

| module | what it has |
|---|---|
| `claims` | claims of our own devices: holding them, and which containers use them |
| `components` | what takes part in the requests of one runtime, put together once |
| `convert` | NRI messages to the engine's values and back |
| `daemon_events` | what happens to a node without the runtime: time, settings, hardware |
| `decisions` | events to the node, and the log of what was decided |
| `exposure` | what containers are told of themselves: `/.nri-resource-policy/resources.sh` |
| `findings` | deviations that a look at the cgroups showed, for logs, events and metrics |
| `host_equipment` | what the host can do for classes, as the kernel and the OCI runtime say |
| `pods` | the sandboxes there are, and what counts for a whole pod |
| `policy_plugin` | NRI requests to engine events, decisions to adjustments and updates |
| `runtime_link` | calls of our own to the runtime, and registering again |
| `sources` | what is asked beside the runtime |
"""
