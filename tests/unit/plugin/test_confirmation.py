"""What was told counts only once it was seen in force."""

from __future__ import annotations

import pytest

from nri_policy.plugin.confirmation import Confirmations, Phase


@pytest.mark.parametrize("phase", Phase)
def test_an_update_is_lost_unless_the_container_just_runs(phase: Phase) -> None:
    confirmations = Confirmations()
    confirmations.enter("a", phase)
    confirmations.mark_sent(["a", "unheard of"], 1.0)
    assert confirmations.may_be_lost("a") == (phase is not Phase.RUNNING)
    assert not confirmations.may_be_lost("unheard of")
    confirmations.enter("a", Phase.RUNNING)
    assert confirmations.may_be_lost("a") == (phase is not Phase.RUNNING), "until it is seen"
    confirmations.confirm("a")
    assert not confirmations.may_be_lost("a")
    assert [*confirmations.sent] == ["unheard of"]


def test_the_answer_about_a_container_itself_is_not_lost() -> None:
    confirmations = Confirmations()
    confirmations.enter("a", Phase.CREATING)
    confirmations.note_answer("a", 1.0)
    assert not confirmations.may_be_lost("a")
    confirmations.mark_sent(["a"], 2.0)
    assert confirmations.may_be_lost("a")


def test_the_next_request_says_that_the_answers_before_were_handled() -> None:
    confirmations = Confirmations()
    confirmations.note_request(1.0)
    confirmations.mark_sent(["a"], 1.0)
    assert not confirmations.has_handled("a")
    confirmations.note_request(1.0)
    assert confirmations.has_handled("a")


def test_who_is_gone_and_who_was_there_before_a_restart_is_forgotten() -> None:
    confirmations = Confirmations()
    confirmations.enter("a", Phase.STARTING)
    confirmations.mark_sent(["a", "b"], 1.0)
    confirmations.forget("a")
    assert confirmations.phase("a") is Phase.RUNNING
    confirmations.restart([("c", Phase.CREATED), ("d", Phase.RUNNING)])
    assert not confirmations.sent
    assert (confirmations.phase("c"), confirmations.phase("d")) == (Phase.CREATED, Phase.RUNNING)
