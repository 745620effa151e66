"""Comparing where containers run with what was decided for them.

Others import from these modules:

| module | what it has |
|---|---|
| `auditor` | looks every now and then whether containers run where they are to |
| `cgroup` | what the kernel says of a container: its cgroup's files and threads |
| `comparison` | what was decided for a container against what the kernel says of it. Pure |
| `decisions` | where containers are to be, by the node, as an audit wants to know it |
| `first_process` | a first process's scheduling attributes and I/O priority, from the kernel |
| `report` | what an audit found, and what is shown of it |
| `source` | the node as its auditor sees it, and what is done about what was found |
"""
