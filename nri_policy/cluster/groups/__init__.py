"""The groups of a live cluster: queue, attempts, gates. Without I/O: reads in, writes out."""
