"""The replay keeps what its callers allow, within its bounds, and never gives away what weights are judged by."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from specinfer.drafters.entries import DraftOutcome
from specinfer.statuses import EntryStatus
from specinfer.v1 import speculator_pb2
from speculator_svc.clients import own_id
from speculator_svc.learning.replay import HELD_OUT, MAX_LENGTH, MIN_OUTPUT, Replay, record

MOST, KEEP_S, ALL = 500, 100.0, 10**6


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def in_turn() -> Callable[[], float]:
    """Draw so that every fifth text is held out."""
    return cycle([0.5, 0.5, 0.5, 0.5, 0.1]).__next__


def request(replay: Replay, name: str, caller: int, prompt: int, output: int) -> list[int]:
    """Send a request in messages of three tokens and end it; return its tokens."""
    tokens = [(7 * caller + i) % 50 for i in range(prompt + output)]
    replay.begin(name, caller, prompt, tokens[:prompt])
    for start in range(prompt, len(tokens), 3):
        replay.continue_request(name, start, tokens[start : start + 3])
    replay.end([name])
    return tokens


REQUESTS = st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(0, 60), st.floats(0, 30))


@given(st.lists(REQUESTS, max_size=60))
def test_bounds_hold_and_held_out_texts_are_never_given_away(
    requests: list[tuple[int, int, int, float]],
) -> None:
    clock = Clock()
    replay = Replay(MOST, KEEP_S, clock, draw=in_turn())
    given_away: set[int] = set()
    judged_by: set[int] = set()
    for number, (caller, prompt, output, pause) in enumerate(requests):
        request(replay, str(number), caller, prompt, output)
        assert replay.tokens <= MOST
        training, held_out = replay.training(0), replay.held_out(0, ALL)
        given_away |= {text.number for text in training}
        judged_by |= {text.number for text in held_out}
        for text in (*training, *held_out):
            assert text.ended >= clock.now - KEEP_S
            assert len(text.tokens) - text.prompt_len >= MIN_OUTPUT
        assert [text.number for text in training] == sorted(text.number for text in training)
        clock.now += pause
    assert not given_away & judged_by
    kept = Counter(caller for caller, _, output, _ in requests if output >= MIN_OUTPUT)
    assert len(given_away | judged_by) <= sum(kept.values())


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(8, 40)), min_size=40, max_size=80))
def test_who_sends_much_does_not_displace_the_others(requests: list[tuple[int, int]]) -> None:
    """A caller that never had more than a quarter of the room keeps everything."""
    replay, sent = Replay(MOST, KEEP_S, Clock()), defaultdict[int, int](int)
    quiet = 0
    for number, (caller, output) in enumerate(requests):
        if caller == 0 and sent[0] + output + 1 > MOST // 4:
            caller = 1
        request(replay, str(number), caller, 1, output)
        sent[caller] += output + 1
        quiet += caller == 0
    texts = [text for text in (*replay.training(0), *replay.held_out(0, ALL)) if text.caller == 0]
    assert len(texts) == quiet


def test_a_fifth_of_the_texts_is_held_out_also_of_many_callers_with_one_each() -> None:
    """By chance: three standard deviations; false alarms 0.3 %, with the seed none."""
    draw = random.Random(1)
    replay = Replay(10**6, KEEP_S, Clock(), draw=draw.random)
    for caller in range(1000):
        request(replay, str(caller), caller, 4, 20)
    held_out = len(replay.held_out(0, ALL))
    assert abs(held_out - 1000 * HELD_OUT) < 3 * (1000 * HELD_OUT * (1 - HELD_OUT)) ** 0.5
    assert held_out + len(replay.training(0)) == 1000


def test_judges_are_of_all_callers_however_much_one_sends() -> None:
    replay = Replay(10**6, KEEP_S, Clock(), draw=lambda: 0.0)
    for number in range(10):
        request(replay, f"quiet-{number}", 1, 4, 20)
    for number in range(300):
        request(replay, f"loud-{number}", 2, 4, 20)
    chosen = replay.held_out(0, 16)
    assert Counter(text.caller for text in chosen) == {1: 8, 2: 8}
    newest = [text.number for text in replay.held_out(0, ALL) if text.caller == 2][-8:]
    assert [text.number for text in chosen if text.caller == 2] == newest
    assert len(replay.held_out(0, 96)) == 96


def test_a_request_of_the_same_name_is_not_taken_for_the_one_before() -> None:
    """Its release was lost, and its caller does not want it to be kept."""
    replay = Replay(10**6, KEEP_S, Clock())
    replay.begin("r", 1, 2, [1, 2, 3, 4, 5])
    entry = speculator_pb2.DraftEntry(request_id="r", delta_token_ids=[1, 2, 3, 4, 5])
    message = speculator_pb2.DraftRequest(entries=[entry])
    request_id = own_id("", "r")
    replay.begin(request_id, 1, 2, [1, 2, 3, 4, 5])
    record(replay, message, [DraftOutcome(request_id, EntryStatus.OK, cached_len=5)])
    replay.continue_request(request_id, 5, list(range(20)))
    replay.end([request_id])
    assert replay.newest == 0


def test_what_did_not_begin_here_or_has_a_gap_is_not_kept() -> None:
    replay = Replay(10**6, KEEP_S, Clock())
    replay.continue_request("unknown", 5, list(range(20)))
    replay.begin("gap", 1, 2, [1, 2])
    replay.continue_request("gap", 3, list(range(20)))
    replay.continue_request("gap", 2, list(range(20)))
    replay.end(["unknown", "gap", "never seen"])
    assert replay.tokens == 0


def test_a_request_that_starts_over_is_kept_once() -> None:
    replay = Replay(10**6, KEEP_S, Clock())
    replay.begin("r", 1, 2, [1, 2])
    replay.continue_request("r", 2, [3] * 5)
    replay.begin("r", 1, 2, [1, 2, *[3] * 9])
    replay.end(["r"])
    (text,) = (*replay.training(0), *replay.held_out(0, ALL))
    assert text.tokens == (1, 2, *[3] * 9)
    assert text.prompt_len == 2


def test_of_a_long_text_the_last_tokens_are_kept_with_the_place_of_its_answer() -> None:
    replay = Replay(10**6, KEEP_S, Clock())
    tokens = list(range(MAX_LENGTH + 300))
    replay.begin("long", 1, len(tokens) - 100, tokens)
    replay.end(["long"])
    (text,) = (*replay.training(0), *replay.held_out(0, ALL))
    assert text.tokens == tuple(tokens[300:])
    assert text.tokens[text.prompt_len :] == tuple(tokens[-100:])


def test_a_request_whose_gateway_is_gone_ends() -> None:
    clock = Clock()
    replay = Replay(10**6, KEEP_S, clock)
    replay.begin("old", 1, 1, [1, *range(20)])
    clock.now = 10
    replay.begin("new", 1, 1, [1, *range(20)])
    replay.end_idle(5)
    assert replay.newest == 1
    replay.end(["new", "old"])
    assert replay.newest == 2
