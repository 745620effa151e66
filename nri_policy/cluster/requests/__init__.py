"""What groups ask of their places: annotations, PlacementGroups, and the plan for one topology.

Owns how a request is written, the defaults of what it leaves out, and what in it is wrong by
itself. It must not know what is free, nor the order in which places are tried: `engine` does.
"""
