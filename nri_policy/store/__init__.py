"""Durable state in SQLite: the grants of containers, and the journal of events and decisions.

Owns the file, its forms, and what happens when it cannot be read or written. It must not decide
anything: a replay uses the same engine.

Others import from these modules:

| module | what it has |
|---|---|
| `errors` | the errors of the store; each text names the file and the remedy |
| `folder` | the permissions of the store's folder, and setting aside a damaged store |
| `history` | answers from the journal, as documents |
| `journal` | the recorded events and decisions, in order |
| `replay` | replays a journal as recorded, or with other settings or on another machine |
| `store` | commits each decision before its answer leaves |
"""
