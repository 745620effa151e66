"""Tuning: kernel tunables that the policy sets for CPUs, interrupts and caches, and gives back.

Others import from these modules:

| module | what it has |
|---|---|
| `cpu_classes` | what CPU classes set on a machine |
| `decision` | the rules of writing and restoring |
| `faults` | fields of the settings that a machine cannot fulfil |
| `interrupts` | which CPUs must handle each interrupt |
| `irqbalance` | the interrupts that irqbalance does not move |
| `items` | what can be set: a closed list of kinds, attributes and values |
| `protocol` | what callers ask the tuner, and its client |
| `rdt` | the schemata of RDT classes on a machine |
| `server` | the tuner's process |

`tuner_journal` has the original values, and `files` the kernel's files.
"""
