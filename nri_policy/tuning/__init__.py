"""Tuning: kernel tunables that the policy sets for CPUs, interrupts and caches, and gives back.

Others import from these modules:

| module | what it has |
|---|---|
| `protocol` | what callers ask the tuner, and its client |
| `server` | the tuner's process |

`items` has the closed list of what can be set, `decision` the rules of writing and restoring,
`journal` the original values, and `files` the kernel's files.
"""
