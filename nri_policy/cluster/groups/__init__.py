"""The groups of a live cluster, without I/O: objects in, writes out.

`record` defines the records of one group and of one pod; `table` and `members` hold all records,
with indexes. `reconcile` is a function from these to the next record of a group and its writes;
`group_placer` places the groups that wait, in the order of `queue`, without the hosts that
`waiting` reserves for others. `controller` applies both step by step.

Owns the state of each group, from its first pod to its last place. It must not know clients,
watches or the lease: they are the service's.
"""
