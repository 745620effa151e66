"""Delivery: how decisions come into force, in cgroups, in the runtime's record and in systemd.

Others import from these modules:

| module | what it has |
|---|---|
| `cgroup_tree` | the files of cgroups, by their paths |
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
| `reporter` | what is said of containers in the log and the metrics |

`delivery_state` derives the next actions from all inputs so far, without I/O. One object has five
layers; each layer uses only those before it:

1. `record_table`: the records, and an index for each kind of next action;
2. `occupancy`: the CPUs that containers still occupy, and which containers shrink or may grow;
3. `next_actions`: the table of states and next actions, when each is due, and what it is about;
4. `observations`: what follows from what cgroups have;
5. `delivery_state`: what follows from all other inputs.

Its parts: `desired` is what the engine has decided, `pod_quota_records` has the records of pods,
`partition_records` which container is a kernel partition, and `overlap_times` when all cpusets are
looked at. `cpuset_checks` compares what cgroups have with what is due. `survey` reads cgroups for
requests about all containers.
"""
