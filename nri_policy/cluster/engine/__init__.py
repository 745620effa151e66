"""Places groups on the nodes of a cluster; no I/O, no clock.

Owns decisions on whole groups: placing, replacing, evicting for a higher priority, hosts that are
set aside. A decision changes nothing: callers report it back by an event. It must not know why a
group is placed, nor what nodes refuse for their zones: `groups` and `numa` do.
"""
