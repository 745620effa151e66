"""A simulated node: the other side of the NRI wire, and scenarios played on it.

Others import from these modules:

| module | what it has |
|---|---|
| `device_manager` | the kubelet's device manager: the devices of a node, and their users |
| `node` | the daemon's own engine and session, in this process, for an embedded runtime |
| `playback` | each step against the embedded runtime and a node's daemon |
| `scenario` | the steps of a simulation |
"""
