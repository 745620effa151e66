"""Books what was chosen, and moves other containers where that makes room.

Owns bookings of containers, of parts of claims, of the shares of a pod's room, and the places of
running containers that nothing fits any more. It works inside a transaction: after an error the
caller restores the state. It must not know why a container is placed: which event, which restart.
"""
