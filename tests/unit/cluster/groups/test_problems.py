"""What is said once of a group, and forgotten when it is over."""

from __future__ import annotations

from nri_policy.cluster.groups.problems import Problems
from nri_policy.cluster.groups.seen_groups import SeenGroups


def test_a_problem_is_news_once_and_again_after_it_was_over() -> None:
    problems = Problems(SeenGroups(lambda: 0.0))
    key = ("default", "g")
    assert problems.say(key, "too few pods")
    assert not problems.say(key, "too few pods")
    assert problems.say(key, "no room")
    assert not problems.say(key, "")
    assert not problems.texts
    assert problems.say(key, "no room")
    assert problems.say_of_pod(key, "no room")
