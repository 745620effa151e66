"""Places all running containers again: after a restart, under new settings, on a changed machine.

Owns which of several records of a container counts (the runtime's list, the store, the cgroup), the
order of placing, and that a container keeps what it had if that is possible. It must not know how
records are read or stored: events bring them.
"""
