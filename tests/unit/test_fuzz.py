"""A short run of the fuzzer; `python -m tests.fuzz` is the long one (docs/robustness.md)."""

import pytest

from tests import fuzz

pytestmark = pytest.mark.usefixtures("inside_a_run")


def test_hostile_inputs_are_refused_or_sound():
    outcomes = fuzz.run(4000, seed=3, tell=False)
    assert sum(outcomes.values()) == 4000
    # The inputs are near enough to honest ones to get everywhere.
    assert set(outcomes) == {
        "array refused", "array taken", "reply refused", "reply taken", "reply taken, some clients refused",
        "unreadable for Flower", "other message refused", "other message taken",
    }  # fmt: skip
    assert min(outcomes.values()) > 10


def test_an_input_can_be_made_again_and_a_finding_says_how(monkeypatch):
    assert fuzz.run(1, 3, only=17, tell=False) == fuzz.run(1, 3, only=17, tell=False)

    def broken(*given):
        raise MemoryError

    monkeypatch.setattr(fuzz, "one_input", broken)
    with pytest.raises(MemoryError) as caught:
        fuzz.run(10, 3, tell=False)
    assert caught.value.__notes__ == ["input 0 of seed 3: python -m tests.fuzz --seed 3 --only 0"]


def test_the_honest_messages_are_the_same_bytes_whenever_they_are_made():
    assert fuzz.Seeds().contents == fuzz.Seeds().contents
