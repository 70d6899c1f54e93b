"""`specinfer demo`: what it says is what its answers took."""

import asyncio
from typing import Any, cast

import pytest
from rich.console import Console

from specinfer.cli import demo
from specinfer.client import Answer, AsyncClient
from specinfer.client.answer import SpeculationStats, Summary


class Gateway:
    """Answers with tokens of a length of time each; every fourth answer was disturbed."""

    def __init__(self, token_s: dict[str, float], disturbed: float = 1.0) -> None:
        self._token_s, self._disturbed, self.asked = token_s, disturbed, list[tuple[str, Any]]()

    async def generate(self, prompt: str, on_text: Any = str, **options: Any) -> Answer:
        mode, tokens = options.get("speculation", "tree"), options["max_new_tokens"]
        self.asked.append((prompt, mode))
        for piece in ("An [answer] ", "of two lines\n", "and `code`."):
            on_text(piece)
        slow = self._disturbed if len(self.asked) % 4 == 0 else 1.0
        seconds = self._token_s[mode] * slow
        stats = SpeculationStats(steps=tokens // 2, accepted=tokens - tokens // 2)
        return Answer(token_ids=list(range(tokens)), tpot_s=seconds, summary=Summary(stats=stats))


def compared(service: Gateway, resident: Gateway) -> list[demo.DemoRun]:
    seen: list[str] = []
    clients = cast(AsyncClient, service), cast(AsyncClient, resident)
    runs = asyncio.run(demo.compare_modes(*clients, 9, seen.append))
    assert len(seen) == 3 * len(demo.PROMPTS) * demo.ROUNDS
    return runs


def test_modes_take_turns_and_a_disturbed_answer_changes_no_figure() -> None:
    service = Gateway({"tree": 0.008}, disturbed=50.0)
    resident = Gateway({"off": 0.010, "tree": 0.005})
    plain, by_service, by_verifier = compared(service, resident)
    assert demo.speedup(by_service, plain) == pytest.approx(1.25)
    assert demo.speedup(by_verifier, plain) == pytest.approx(2.0)
    modes = [mode for _, mode in resident.asked]
    assert modes[:4] == ["tree", "off", "tree", "off"], "a round in reverse order reads the prompts first"
    assert modes.count("off") == modes.count("tree") == len(demo.PROMPTS) * (demo.ROUNDS + 1)


def test_the_sentence_names_the_gain_and_says_if_text_differs() -> None:
    runs = compared(Gateway({"tree": 0.008}), Gateway({"off": 0.010, "tree": 0.005}))
    assert demo.sentence(runs) == (
        "Token trees gave 2.00 times the speed of plain decoding (half of the answers between 2.00 and 2.00 "
        "times), with the same text."
    )
    other = Answer(token_ids=[1], tpot_s=0.008)
    wrong = demo.DemoRun(demo.SERVICE, [other, *runs[1].answers[1:]])
    assert "text that differs: please report" in demo.sentence([runs[0], wrong, runs[2]])


@pytest.mark.parametrize("width", [55, 80])
def test_it_reads_well_in_a_pipe_and_in_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = Console(width=width)  # it keeps the width that the environment named when it was made
    monkeypatch.setattr(demo, "output", narrow)
    gateway = Gateway({"off": 0.010, "tree": 0.005})
    asyncio.run(demo.stream_answers(cast(AsyncClient, gateway), 9))
    demo.print_comparison(compared(gateway, gateway), "a model")
    text, errors = capsys.readouterr()
    assert (errors, "\x1b" in text, "…" in text) == ("", False, False)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("An [answer] of two lines\nand `code`.\n(9 tokens in 4 steps)\n") == len(demo.PROMPTS)
    for mode in (demo.PLAIN, demo.SERVICE, demo.RESIDENT):
        assert mode in text or width < 80


def test_an_answer_that_came_at_once_has_a_rate() -> None:
    """Few tokens come in one message, so there is no time between the first and the last."""
    run = demo.DemoRun(demo.PLAIN, [Answer(token_ids=[1, 2], ttft_s=0.1), Answer(token_ids=[1], tpot_s=0.01)])
    assert run.rates == [20.0, 100.0]
