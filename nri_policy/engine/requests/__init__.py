"""Reads what a container asks for, under the settings in force: its request.

Owns when a cached request may be used, the requests of pod rooms and claims, and how the zone that
the scheduler chose becomes a hint. It must not know grants of other containers, nor choose a place:
the same container has the same request on an empty and on a full node.
"""
