"""Seeded worlds keep every token in its place, and find faults that are put into the product."""

import os
import subprocess
import sys

import pytest

from tests.simulation.mutations import MUTATIONS, first_seed_that_finds
from tests.simulation.plan import plan_of
from tests.simulation.world import run
from tests.support.effort import THOROUGH

_SEEDS = 20_000 if THOROUGH else 200
pytestmark = pytest.mark.timeout(
    5 * 3600 if THOROUGH else 1800
)  # five worlds a second; fewer beside other work


def test_no_world_breaks_a_rule() -> None:
    """In a process of its own, whose sets have the order that `make simulate SEED=n` repeats."""
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(_SEEDS)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_repeats_its_world() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        assert run(plan_of(7), trace.append) == ""
    assert traces[0] == traces[1]
    assert len(traces[0]) > 4


def test_the_first_wrong_token_is_found() -> None:
    """A step of a dropped run in the place of its successor's."""
    name = "a dropped run is shown under the present adoption"
    assert first_seed_that_finds(name, 200) is not None


@pytest.mark.skipif(not THOROUGH, reason="takes minutes: `make test-thorough`")
@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_found(name: str) -> None:
    assert first_seed_that_finds(name, 1000) is not None
