"""Audit: compares where containers run with where they should run.

Owns reading the kernel's side, from cgroups and procfs, and the verdict. It must not decide a
placement or write a message to the runtime: repairs go through `plugin`.

Others import from these modules:

| module | what it has |
|---|---|
| `above_pods` | cgroups above containers, and which of these lack CPUs |
| `auditor` | audits all containers every minute, and sends wrong ones their updates again |
| `cgroup` | what the kernel says about a container: its cgroup's files and threads |
| `cgroup_paths` | the paths of cgroups, by the runtime's names |
| `deviations` | compares a container's decision with what the kernel says. Pure |
| `cpu_use` | what each container used, and how long it waited for a CPU, in the last minute |
| `first_process` | a first process's scheduling attributes and I/O priority, from the kernel |
| `node_source` | the node as the auditor sees it, and the repairs |
| `parents` | cgroups above containers that lack CPUs which the daemon gives to containers |
| `result` | the result of an audit, and the document that shows it |
| `targets` | the targets of an audit: what was decided for each container |
"""
