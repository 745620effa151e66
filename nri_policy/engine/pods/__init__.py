"""Pods as a whole: their rooms, their amounts, and resources at the level of the pod.

Owns when a pod gets a room and how the room follows a resize, what the amounts of a pod are while
its containers change, and that its memory is booked once. It must not know restarts, nor how the
runtime reports pods.
"""
