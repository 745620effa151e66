"""What `explain` says of a container that uses claims."""

from __future__ import annotations

from io import StringIO

import pytest
from msgspec.structs import replace

from nri_policy.cli.node.criteria_table import explain
from nri_policy.cli.output import Canvas
from nri_policy.engine.event import Prepared
from nri_policy.node import view_of
from nri_policy.report import answer_report, explanation_report
from tests.support.claims import part, user
from tests.support.engine_driver import EngineDriver


def explained(milli: int, *, why: bool = False) -> str:
    """Return what is said of a container that requests *milli* beside a claim of 2500m."""
    driver, claim = EngineDriver(), part(2500, 1)
    driver.handle(Prepared(parts=(claim,)))
    container = user(claim, milli=milli)
    driver.create(container)
    placed, view = driver.engine.state.placed[container.id], view_of(driver.engine)
    report = explanation_report(placed.explanation, placed.grant)
    screen = StringIO()
    for each in explain(replace(report, answer=answer_report(view, placed)), why=why):
        Canvas(file=screen, width=200, no_color=True).print(each)
    return screen.getvalue()


@pytest.mark.parametrize("why", [False, True])
def test_claims_are_named_with_what_they_have(why: bool) -> None:
    text = explained(2500, why=why)
    assert "c0: where its claim is allocated, on NUMA node #1" in text
    assert "4-5 of its claims" in text
    assert text.count("2500m CPU of numa1 by claim default/cpus (cpu)") == 1


def test_what_schedulers_do_not_count_is_said() -> None:
    assert "schedulers count the difference as free" in explained(0)
    assert "it shares 1500m CPU of NUMA node #1, which it requests beyond" in explained(4000)
