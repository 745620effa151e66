"""The pool tree: structure, capacity accounting, CPU picking, scoring."""
