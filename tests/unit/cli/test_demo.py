"""`specinfer demo`: its figures and its text match the answers."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest
from rich.console import Console

from specinfer.cli import demo
from specinfer.cli.chat import marked
from specinfer.cli.chat.marked import marked_tokens, print_marked
from specinfer.client import Answer, AsyncClient
from specinfer.request.answer import SpeculationStats, SpeculatorStats, Summary
from specinfer.request.fields import RequestFields
from specinfer.v1 import generation_pb2


def node(token: int, parent: int, *speculators: int) -> generation_pb2.WatchedNode:
    """Return a node proposed by these speculators."""
    proposals = [generation_pb2.WatchedProposal(speculator=speculator) for speculator in speculators]
    return generation_pb2.WatchedNode(token_id=token, parent=parent, proposals=proposals)


def step(position: int, texts: Sequence[str], *guessed: int) -> generation_pb2.WatchReply:
    """Return a step in which `guessed[i]` is the speculator of token i; the last token is the target's own."""
    nodes = [node(0, -1), *(node(1, place, by) for place, by in enumerate(guessed))]
    tokens = [generation_pb2.WatchedToken(token_id=1, text=text) for text in texts]
    accepted = range(1, 1 + len(guessed))
    watched = generation_pb2.WatchedStep(position=position, nodes=nodes, accepted=accepted, tokens=tokens)
    return generation_pb2.WatchReply(step=watched)


STEPS = [step(0, ["An ", "[answer] "], 1), step(2, ["of two", " lines\n", "and `code`."], 0, 1)]


class Gateway:
    """Answers with a fixed time per token of each mode; every fourth answer is slower by a factor."""

    def __init__(
        self,
        token_s: dict[str, float],
        disturbed: float = 1.0,
        steps: Sequence[generation_pb2.WatchReply] = STEPS,
    ) -> None:
        self._token_s, self._disturbed, self.asked = token_s, disturbed, list[tuple[str, Any]]()
        self._steps = steps

    async def generate(self, prompt: str, **options: Any) -> Answer:
        mode, tokens = options.get("speculation", "tree"), options["max_new_tokens"]
        self.asked.append((prompt, mode))
        slow = self._disturbed if len(self.asked) % 4 == 0 else 1.0
        seconds = self._token_s[mode] * slow
        speculators = (
            SpeculatorStats("ngram", accepted=1),
            SpeculatorStats("ssm", accepted=2),
            SpeculatorStats("x"),
        )
        stats = SpeculationStats(steps=tokens // 2, accepted=tokens - tokens // 2, speculators=speculators)
        text = "An [answer] of two lines\nand `code`."
        return Answer(text, token_ids=list(range(tokens)), tpot_s=seconds, summary=Summary(stats=stats))

    async def watch(self, request_id: str) -> AsyncGenerator[generation_pb2.WatchReply, None]:
        for reply in (generation_pb2.WatchReply(), *self._steps):
            yield reply

    async def detokenize(self, ids: Sequence[int]) -> str:
        return f"<{len(ids)} more>"

    async def status(self) -> generation_pb2.StatusReply:
        names = [generation_pb2.SpeculatorState(name=name) for name in ("ngram", "ssm")]
        return generation_pb2.StatusReply(speculators=names)


def compared(gateway: Gateway) -> list[demo.DemoRun]:
    seen: list[str] = []
    runs = asyncio.run(demo.compare_modes(cast(AsyncClient, gateway), 5, seen.append))
    assert len(seen) == 2 * len(demo.PROMPTS) * demo.ROUNDS
    return runs


def test_modes_take_turns_and_a_disturbed_answer_changes_no_figure() -> None:
    gateway = Gateway({"off": 0.010, "tree": 0.005}, disturbed=50.0)
    plain, trees = compared(gateway)
    assert demo.speedup(trees, plain) == pytest.approx(2.0)
    modes = [mode for _, mode in gateway.asked]
    assert modes[:4] == ["off", "tree", "off", "tree"]
    assert modes[6:8] == ["tree", "off"], "every other round in reverse"
    assert modes.count("off") == modes.count("tree") == len(demo.PROMPTS) * demo.ROUNDS


def test_the_sentence_states_the_gain_and_whether_text_differs() -> None:
    runs = compared(Gateway({"off": 0.010, "tree": 0.005}))
    assert demo.sentence(runs) == (
        "Token trees gave 2.00 times the speed of plain decoding (half of the answers between 2.00 and 2.00 "
        "times), with the same text."
    )
    other = Answer(token_ids=[1], tpot_s=0.008)
    wrong = demo.DemoRun(demo.TREES, [other, *runs[1].answers[1:]])
    assert "text that differs: please report" in demo.sentence([runs[0], wrong])


def test_tokens_are_marked_by_their_speculator() -> None:
    assert marked_tokens(STEPS[1].step) == [("of two", 0), (" lines\n", 1), ("and `code`.", None)]
    forced = step(0, ["{", "x"], 0)
    del forced.step.nodes[1].proposals[:]
    assert marked_tokens(forced.step) == [("{", None), ("x", None)]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (STEPS, "An [answer] of two lines\nand `code`."),
        (STEPS[:1], "An [answer] <3 more>"),
        (STEPS[1:], "An [answer] of two lines\nand `code`."),
        ([STEPS[0], step(4, ["late"])], "An [answer] <3 more>"),
    ],
)
def test_the_whole_answer_is_shown_if_steps_are_left_out(
    steps: Sequence[generation_pb2.WatchReply],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(marked, "output", Console(width=80))
    gateway = Gateway({"tree": 0.005}, steps=steps)
    asyncio.run(print_marked(cast(AsyncClient, gateway), "x", RequestFields(max_new_tokens=5)))
    assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.parametrize("width", [55, 80])
def test_it_reads_well_in_a_pipe_and_in_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = Console(width=width)  # it keeps the width that the environment named when it was made
    monkeypatch.setattr(demo, "output", narrow)
    monkeypatch.setattr(marked, "output", narrow)
    gateway = Gateway({"off": 0.010, "tree": 0.005})
    asyncio.run(demo.stream_answers(cast(AsyncClient, gateway), 5))
    demo.print_comparison(compared(gateway), "a model")
    text, errors = capsys.readouterr()
    assert (errors, "\x1b" in text, "…" in text) == ("", False, False)
    assert max(map(len, text.splitlines())) <= width
    shown = (
        "An [answer] of two lines\nand `code`.\n(5 tokens in 2 steps: 1 guessed by ngram, 2 guessed by ssm)\n"
    )
    assert " ".join(text.split()).count(" ".join(shown.split())) == len(demo.PROMPTS)
    for kind in (*demo.PROMPTS, "all"):
        (row,) = [line.split() for line in text.splitlines() if line.split()[:1] == [kind]]
        assert row[1:6] == ["100", "→", "200", "2.00x", "2.50"], row
    assert "ngram 20%, ssm 40%" in text or width < 80


GB = 10**9


@pytest.mark.parametrize(
    ("memory", "disk", "model", "words"),
    [
        (8 * GB, 20 * GB, demo.PAIR[0], "1.6 GB to download once"),
        (3 * GB, 20 * GB, "smollm2-135m", "5 GB of memory are needed, 3.0 are available"),
        (8 * GB, 1 * GB, "smollm2-135m", "3.1 GB of disk are needed, 1.0 are free"),
    ],
)
def test_the_pair_is_chosen_if_it_fits_and_the_reason_is_given(
    memory: int, disk: int, model: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "is_pulled", lambda name: False)
    pair = demo.choose(memory, disk)
    assert pair.model == model
    assert words in pair.why
    monkeypatch.setattr(demo, "is_pulled", lambda name: True)
    assert (demo.choose(8 * GB, 2 * GB).draft, "both in the cache" in demo.choose(8 * GB, 2 * GB).why) == (
        demo.PAIR[1],
        True,
    )


def test_an_answer_in_one_message_has_a_rate() -> None:
    """Few tokens come in one message, without time between the first and the last."""
    run = demo.DemoRun(demo.PLAIN, [Answer(token_ids=[1, 2], ttft_s=0.1), Answer(token_ids=[1], tpot_s=0.01)])
    assert run.rates == [20.0, 100.0]
