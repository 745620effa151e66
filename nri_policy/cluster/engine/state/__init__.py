"""What is used where: pods, groups, and the trees of topologies and label values.

Owns the amounts that count as used, how events change them, and forks to try things in; and what is
asked of limits of hosts beside their amounts. It must not choose places for a group: `search` does
that. What zones hold is in `numa`.
"""
