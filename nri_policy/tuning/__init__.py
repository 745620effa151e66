"""Tuning: kernel tunables that the policy sets for CPUs, interrupts and caches, and gives back.

Others import from these modules:

| module | what it has |
|---|---|
| `items` | what can be set: a closed list of kinds, attributes and values |

"""
