"""One replica of the service: what it follows and writes in a cluster, and which calls it answers.

Owns all I/O of the cluster side: watches, writes, the lease, the HTTP server, settings that change.
What is known and decided is in the rooms below, without I/O. It must not know rules of placement,
nor of zones: it hands objects in, and writes what comes out.
"""
