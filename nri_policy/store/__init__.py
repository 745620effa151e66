"""Durable state: what containers hold, and the journal of how that came about (SQLite).

Others import from these modules:

| module | what it has |
|---|---|
| `errors` | what can go wrong with the store; every text names the file and what to do |
| `folder` | who may write it, and how a bad one is put out of the way |
| `history` | what the journal tells those who ask, as documents |
| `journal` | what happened and what was decided, in order, for replay and explanation |
| `replay` | a recorded journal again, as it was, or with other settings or on another machine |
| `store` | what must outlive the daemon, committed before the answer leaves |
"""
