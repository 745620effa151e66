"""The groups of a live cluster, without I/O: objects in, writes out.

`record` is what is known of one group and of one pod; `table` and `members` have all records, and
their indexes. `reconcile` says what is to be written for a group, `group_placer` places those that
wait, in the order of `queue`, without the hosts that `waiting` reserves for others. `controller`
does this step by step.

Owns the state of each group, from its first pod to its last place. It must not know clients,
watches or the lease: they are the service's.
"""
