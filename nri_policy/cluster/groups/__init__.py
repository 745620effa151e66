"""The groups of a live cluster, without I/O: objects in, writes out.

`record` is what is known of one group and of one pod; `table` and `members` have all records, and
their indexes. `reconcile` says what is to be written for a group, `attempts` places those that
wait, in the order of `queue`, without the hosts that `waiting` reserves for others. `controller`
does this step by step. Clients, watches and the lease are the service's.
"""
