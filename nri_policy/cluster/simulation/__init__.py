"""Clusters and jobs that do not exist, and playing what happens in them.

Owns scenarios, their time, and the figures that they come to. Decisions are those of the engine and
of the queue of `groups`, as on a live cluster. It must not know the API nor a real clock.
"""
