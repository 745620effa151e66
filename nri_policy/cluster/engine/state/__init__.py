"""What is used where: pods, groups, and the trees of topologies and label values.

Owns the amounts that count as used, how events change them, and forks to try things in. It must
not know where a group is to go, nor in which order places are tried: `search` does that.
"""
