"""Delivery: how decisions come into force, in cgroups, in the runtime's record and in systemd.

Others import from these modules:

| module | what it has |
|---|---|
| `cpuset_files` | writes the CPUs of cgroups, those of version 1 with what is below them |
| `executor` | does what the machine says, with files and systemd |
| `host_cgroups` | what the cgroups of a host must do for it |
| `inputs` | what the machine takes in, and what it says |
| `messages` | sends the runtime what no answer carries |
| `overlaps` | finds containers on CPUs that are another's own, however they came there |
| `partition_files` | writes the partitions of cgroups, in the order that the kernel needs |
| `partitions` | makes containers partitions, for which the kernel keeps all others off their CPUs |
| `pod_quotas` | takes the CFS quota from the cgroups of pods, and gives it back |
| `record` | what is known about the delivery to one container |

`delivery_state` has what is to be done next, as a pure function of what has happened. Its parts:
`record_table` has the records, `occupancy` which CPUs are still in use, `pod_quota_records` the
records of pods, `partition_records` which container is a kernel partition, `overlap_times` when all
cpusets are looked at, and `schedule` when each action is due. `cpuset_checks` compares what cgroups
have with what is due.
"""
