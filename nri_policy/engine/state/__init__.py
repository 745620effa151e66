"""What the engine knows of its node: the layout, all grants and bookings, what follows from them.

Owns the tables, how they change together, and how they are put back when an event is refused. It
must not know how places are chosen, nor events. All rooms above read it; outside of the engine,
only `node` does.
"""
