"""Chooses the pool, the CPUs and the memory of one request, or says what is missing.

Owns the criteria and their order, cutting CPUs, and the words of errors and notes. It reads the
state and books nothing, so a choice can be tried and dropped. It must not know events, nor move
another container: `placement` does that.
"""
