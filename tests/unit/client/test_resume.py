"""`Resume` gives out the undisturbed stream although calls break, repeat and delay replies."""

from dataclasses import dataclass

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.client import (
    BrokenStreamError,
    Failure,
    Patience,
    Piece,
    RequestFailedError,
    StreamLostError,
    Summary,
)
from specinfer.client.resume import Item, Resume
from specinfer.v1 import generation_pb2

Reply = generation_pb2.GenerateReply
AWAY = Failure(grpc.StatusCode.UNAVAILABLE, "away")
PATIENCE = Patience(patience_s=60.0, first_wait_s=0.1, longest_wait_s=5.0)


@dataclass(frozen=True)
class Story:
    """The undisturbed stream; `ends[p]` characters of its text are complete after p tokens."""

    tokens: tuple[int, ...]
    text: str
    ends: tuple[int, ...]

    def reply(self, start: int, count: int, last: bool = False) -> Reply:
        """Return a gateway's reply with `count` tokens from `start`; the last reply has all of the remaining text."""
        end = len(self.text) if last else self.ends[start + count]
        tokens = self.tokens[start : start + count]
        reply = Reply(token_ids=tokens, text=self.text[self.ends[start] : end], position=start)
        reply.logprobs.extend(-float(token) for token in tokens)
        if last:
            reply.summary.new_tokens = len(self.tokens)
        return reply

    def replies(self, start: int, sizes: list[int]) -> list[Reply]:
        """Return the rest of the stream in replies of these sizes, then of one token each."""
        sent, left = [], [*sizes, *[1] * len(self.tokens)]
        while start < len(self.tokens):
            count = min(left.pop(0), len(self.tokens) - start)
            sent.append(self.reply(start, count, last=count > 1 and start + count == len(self.tokens)))
            start += count
        if not sent or not sent[-1].HasField("summary"):
            sent.append(self.reply(start, 0, last=True))
        return sent


@st.composite
def stories(draw: st.DrawFn) -> Story:
    tokens = tuple(draw(st.lists(st.integers(1, 9), max_size=12)))
    text = "".join(chr(97 + i % 26) for i in range(draw(st.integers(0, 30))))
    middle = sorted(draw(st.lists(st.integers(0, len(text)), min_size=len(tokens), max_size=len(tokens))))
    return Story(tokens, text, (0, *middle))


@dataclass(frozen=True)
class Attempt:
    """One call: tokens per reply, replies before it breaks, replies that are repeated, seconds until it fails."""

    sizes: list[int]
    breaks_after: int
    repeats: list[int]
    delay_s: float


ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        st.lists(st.integers(1, 4), max_size=4),
        st.integers(0, 8),
        st.lists(st.integers(0, 50), max_size=4),
        st.floats(0, 5),
    ),
    max_size=10,
)


def resume(addresses: int = 2, attach_from: int | None = None, patience: Patience = PATIENCE) -> Resume:
    names = tuple(f"g{i}" for i in range(addresses))
    return Resume("r", names, patience, lambda: 0.0, attach_from=attach_from)


def joined(items: list[Item]) -> tuple[tuple[int, ...], str, tuple[float, ...]]:
    pieces = [item for item in items if isinstance(item, Piece)]
    return (
        tuple(t for piece in pieces for t in piece.token_ids),
        "".join(piece.text for piece in pieces),
        tuple(x for piece in pieces for x in piece.logprobs),
    )


@given(stories(), ATTEMPTS, st.booleans())
def test_what_comes_out_is_the_undisturbed_stream(
    story: Story, attempts: list[Attempt], attach: bool
) -> None:
    """Attempts may take longer than the patience, which counts from the first failure."""
    machine = resume(attach_from=0 if attach else None)
    seen: list[Reply] = []
    items: list[Item] = []
    now = 0.0
    for attempt in [*attempts, Attempt([], 1000, [], 0.0)]:
        start = machine.call.attach_from or 0
        assert start == len(joined(items)[0])
        replies = story.replies(start, attempt.sizes)[: attempt.breaks_after]
        # replies without a summary may be repeated at any later time
        for reply in replies:
            items.extend(machine.replied(reply))
            if machine.ended:
                break
            seen.append(reply)
            for index in attempt.repeats:
                again = seen[index % len(seen)]
                if again.token_ids:
                    assert machine.replied(again) == ()
        if machine.ended:
            break
        now += attempt.delay_s
        now += machine.failed(AWAY, now).wait_s
    assert joined(items) == (story.tokens, story.text, tuple(-float(t) for t in story.tokens))
    assert isinstance(items[-1], Summary)
    assert [type(item) for item in items].count(Summary) == 1


@given(stories(), st.lists(st.integers(1, 4), max_size=4), st.data())
def test_a_gap_is_an_error_and_nothing_after_it_is_given_out(
    story: Story, sizes: list[int], data: st.DataObject
) -> None:
    replies = story.replies(0, sizes)
    with_tokens = [i for i, reply in enumerate(replies[:-1]) if reply.token_ids]
    if not with_tokens:
        return
    lost = data.draw(st.sampled_from(with_tokens))
    machine, items = resume(), list[Item]()
    for reply in replies[:lost]:
        items.extend(machine.replied(reply))
    with pytest.raises(BrokenStreamError, match="tokens between"):
        machine.replied(replies[lost + 1])
    count = sum(len(reply.token_ids) for reply in replies[:lost])
    assert joined(items) == (story.tokens[:count], story.text[: story.ends[count]], joined(items)[2])


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (
            Reply(position=4, token_ids=[1]),
            "gateway at .* position 4, expected is 3: tokens between them are missing",
        ),
        (Reply(position=2, token_ids=[1, 2]), "only a part"),
        (Reply(position=1, token_ids=[1, 2], summary=generation_pb2.Summary()), "only a part"),
        (Reply(position=2, summary=generation_pb2.Summary()), "only a part"),
        (Reply(position=3, text="x"), "text without tokens"),
    ],
)
def test_replies_that_break_the_contract_are_errors(reply: Reply, reason: str) -> None:
    machine = resume()
    machine.replied(Reply(token_ids=[7, 8, 9], text="abc"))
    with pytest.raises(BrokenStreamError, match=reason) as caught:
        machine.replied(reply)
    assert (caught.value.position, caught.value.expected) == (reply.position, 3)


def test_generate_is_repeated_until_there_is_a_token_then_it_attaches() -> None:
    machine = resume()
    assert (machine.call.address, machine.call.attach_from) == (0, None)
    machine.replied(Reply())
    call = machine.failed(AWAY, 0.0).call
    assert (call.address, call.attach_from) == (1, None)
    machine.replied(Reply(token_ids=[1, 2]))
    call = machine.failed(AWAY, 0.0).call
    assert (call.address, call.attach_from) == (0, 2)
    assert resume(attach_from=0).call.attach_from == 0


@pytest.mark.parametrize("tokens", [0, 3])
def test_not_found_is_final(tokens: int) -> None:
    machine = resume(attach_from=None if tokens else 0)
    machine.replied(Reply(token_ids=[1] * tokens))
    with pytest.raises(RequestFailedError, match="NOT_FOUND") as caught:
        machine.failed(Failure(grpc.StatusCode.NOT_FOUND, "r"), 0.0)
    assert caught.value.bad_input


def test_waits_double_with_every_round_of_addresses_and_jitter_shortens_them_by_up_to_half() -> None:
    machine = resume(addresses=2)
    assert [machine.failed(AWAY, 0.0).wait_s for _ in range(6)] == [0.1, 0.1, 0.2, 0.2, 0.4, 0.4]
    assert [machine.failed(AWAY, 0.0).failures for _ in range(2)] == [7, 8]
    assert PATIENCE.wait_s(100, 0.0) == 5.0
    assert PATIENCE.wait_s(100, 0.999) == pytest.approx(2.5, abs=0.01)


def test_a_new_token_starts_the_waits_and_the_patience_again() -> None:
    machine = resume(addresses=1)
    for now in (0.0, 50.0):
        machine.failed(AWAY, now)
    machine.replied(Reply(token_ids=[1]))
    assert machine.failed(AWAY, 61.0).wait_s == 0.1
    machine.replied(Reply(token_ids=[1]))  # a repeated token: no progress
    assert machine.failed(AWAY, 120.0).wait_s == 0.2
    with pytest.raises(StreamLostError, match="gateway at g0: away") as caught:
        machine.failed(AWAY, 121.0)
    assert (caught.value.request_id, caught.value.from_token) == ("r", 1)


def test_the_wait_follows_the_gateways_hint_up_to_the_end_of_patience() -> None:
    machine = resume(addresses=1)
    assert machine.failed(Failure(grpc.StatusCode.UNAVAILABLE, "", 7.0), 0.0).wait_s == 7.0
    assert machine.failed(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "", 30.0), 50.0).wait_s == 10.0


def test_without_patience_the_first_failure_is_the_end() -> None:
    with pytest.raises(StreamLostError):
        resume(patience=Patience(patience_s=0.0)).failed(AWAY, 5.0)


def test_a_full_queue_is_waited_for_unless_the_patience_excludes_it() -> None:
    full = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", retry_after_s=2.0)
    assert resume().failed(full, 0.0).wait_s == 2.0
    with pytest.raises(RequestFailedError, match="queue full"):
        resume(patience=Patience(for_room=False)).failed(full, 0.0)
