"""What the runtime is to be sent of a decision: cpusets, shares, quotas and classes.

Owns which of these differ from what was sent before, and the cause that is logged with them. It
must not change a grant, nor know how one was chosen. When and how an update reaches the runtime is
decided outside of the engine.
"""
