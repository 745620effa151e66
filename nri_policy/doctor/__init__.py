"""The doctor: what of a node stands in the daemon's way, and what to do about it.

`facts` reads the node, every part with a deadline; `checks` judge what was read and touch nothing.

Others import from these modules:

| module | what it has |
|---|---|
| `checks` | each judges what was read, and reads nothing itself |
| `facts` | what the doctor knows of a node, each part read with a deadline |
| `finding` | what a check saw, how bad that is, and what helps |
"""
