"""The groups of a live cluster, without I/O: objects in, writes out.

`record` is what is known of one group and of one pod; `table` and `members` have all records, and
their indexes. `reconcile` is a function from these to the next record of a group and its writes;
`group_placer` places the groups that wait, in the order of `queue`, without the hosts that
`waiting` reserves for others. `controller` applies both step by step.

Owns the state of each group, from its first pod to its last place. It must not know clients,
watches or the lease: they are the service's.
"""
