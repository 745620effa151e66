"""What is wrong with pods: each is said once."""

from __future__ import annotations

from nri_policy.cluster.objects.metadata import Key


class PodProblems:
    """The latest problem of each pod."""

    def __init__(self) -> None:
        self.texts: dict[Key, str] = {}

    def say(self, key: Key, problem: str) -> bool:
        """Note what is wrong with a pod; return whether that is news."""
        if not problem:
            self.texts.pop(key, None)
            return False
        news = self.texts.get(key) != problem
        self.texts[key] = problem
        return news
