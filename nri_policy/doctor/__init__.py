"""The doctor: what of a node stands in the daemon's way, and what to do about it.

`facts` reads the node, every part with a deadline; `checks` judge what was read and touch nothing.
"""
