from __future__ import annotations

import pytest

from nri_policy.nri.plugin import PluginIdentity


@pytest.mark.parametrize("name", ["nri-policy", "a", "A_b.c+d-0"])
def test_names_that_runtimes_take_are_taken(name: str) -> None:
    assert PluginIdentity(name=name, index="05").name == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "name\n", "x\0", "a" * 900 + "/"])
def test_names_that_a_runtime_turns_away_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"letters, digits and the characters _\.\+- are valid"):
        PluginIdentity(name=name, index="05")


@pytest.mark.parametrize("index", ["", "5", "100", "a1", "\u0661\u0662", "05\n", "-1"])
def test_indexes_are_two_digits(index: str) -> None:
    with pytest.raises(ValueError, match="two digits are valid"):
        PluginIdentity(name="nri-policy", index=index)
