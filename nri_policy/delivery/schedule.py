"""The schedule: the time of the latest input, and when each action of the plan is due."""

from __future__ import annotations

import math

from nri_policy.delivery.inputs import Action


class Schedule:
    """Seconds of the clock; infinite: never."""

    def __init__(self) -> None:
        self.now = -math.inf
        self.due = dict.fromkeys(Action, math.inf)

    def hasten(self, action: Action, at: float) -> None:
        """Have an action be due at a time, or earlier if it is due earlier."""
        self.due[action] = min(self.due[action], at)
