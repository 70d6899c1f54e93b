"""Layouts of a model that fit a number of devices, and their best speeds. Pure.

    tokens that fit     (memory of a device - weights - working memory) / KV of a token, of the fullest rank
    pass of n tokens    t(n) / TP at best: ranks of a stage divide the work, while stages follow each other

t is the measured curve of a verifier with the whole model on one such device. Messages between ranks
come on top, so these are bounds.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specinfer.errors import SettingError
from specinfer.model.parallel.layout import Layout, check_layout
from specinfer.model.parallel.memory import Memory, largest_memory
from specinfer.model.weights.config import ModelConfig

Curve = Sequence[tuple[int, float]]
"""(tokens of a pass, seconds), ascending, at least one."""


@dataclass(frozen=True, slots=True)
class Need:
    """Requirements of an installation."""

    devices: int
    memory_bytes: int
    """Bytes that a verifier may use of each device."""
    number_bytes: int
    context: int
    """Tokens of a request, prompt and answer."""
    nodes: int
    """Nodes of a request's tree, root included."""
    step_tokens: int
    """Most tokens of a pass."""
    batch: int
    """Requests that are decoded at once: each has logits at its nodes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to divide the devices."""

    layout: Layout
    verifiers: int
    """Copies of the model, each with ranks of its own."""
    memory: Memory
    """Memory of the fullest rank."""
    tokens: int
    """Context tokens that fit into a verifier's cache."""
    requests: int
    """Requests of this context, with their trees, that fit at once, all verifiers together."""

    @property
    def fits(self) -> bool:
        """True if at least one request fits."""
        return self.requests > 0


def plans(config: ModelConfig, need: Need) -> list[Plan]:
    """Return every layout that the model can be divided into, the best first.

    First come the fewest ranks whose cache holds the batch, and of these the fewest stages; then layouts that
    hold less, the most requests first.

    Raises:
        SettingError: if a request of this context is longer than the model's positions.
    """
    if need.context > config.max_positions:
        raise SettingError("context", need.context, f"the model has {config.max_positions} positions")
    found = [_plan(config, need, layout) for layout in _layouts(config, need.devices)]
    return sorted(found, key=lambda plan: _order(plan, need.batch))


def _order(plan: Plan, batch: int) -> tuple[bool, int, int]:
    holds = plan.requests >= batch * plan.verifiers
    return not holds, plan.layout.ranks if holds else -plan.requests, plan.layout.stages


def _layouts(config: ModelConfig, devices: int) -> Iterator[Layout]:
    """Return the layouts whose ranks divide the devices."""
    for ranks in range(1, devices + 1):
        for tensor in range(1, ranks + 1):
            layout = Layout(tensor, ranks // tensor)
            if devices % ranks == 0 and ranks % tensor == 0 and _divides(config, layout):
                yield layout


def _divides(config: ModelConfig, layout: Layout) -> bool:
    try:
        check_layout(config, layout)
    except SettingError:
        return False
    return True


def _plan(config: ModelConfig, need: Need, layout: Layout) -> Plan:
    memory = largest_memory(
        config, layout, need.number_bytes, need.step_tokens, min(need.step_tokens, need.batch * need.nodes)
    )
    tokens, verifiers = memory.tokens(need.memory_bytes), need.devices // layout.ranks
    requests = verifiers * (tokens // (need.context + need.nodes))
    return Plan(layout, verifiers, memory, tokens, requests)


def least_seconds(curve: Curve, layout: Layout, tokens: int) -> float:
    """Return the least seconds of a pass over this many tokens."""
    return seconds_at(curve, tokens) / layout.tensor


def seconds_at(curve: Curve, tokens: int) -> float:
    """Return the seconds of a pass on one device.

    They lie on the line through two measurements, and beyond the largest one are proportional to the tokens.
    """
    sizes = [size for size, _ in curve]
    place = bisect_left(sizes, tokens)
    if place == len(curve):
        size, seconds = curve[-1]
        return seconds * tokens / size
    if place == 0:
        return curve[0][1]
    (a, before), (b, after) = curve[place - 1], curve[place]
    return before + (after - before) * (tokens - a) / (b - a)
