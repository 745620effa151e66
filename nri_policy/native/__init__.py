"""The compiled kernels: whole computations over flat arrays, without the interpreter lock.

Their sources are below `native/`; each has a stub here that says what it takes and returns.
"""
