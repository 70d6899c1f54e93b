"""Figures that benchmarks compute, on a tiny model with known results."""

import asyncio

from benchmarks.decoding import Decoding, DecodingPlan
from benchmarks.load import Load, generate_all, sustained
from benchmarks.paper import guesses, success
from benchmarks.prompts import EvaluationPrompt
from benchmarks.speed import TURNS, Measured, markdown, part_of
from specinfer.client import Answer
from specinfer.drafters import DrafterDescription
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.ssm import SsmDrafter
from specinfer.model.drafting.task import GrowthShape
from specinfer.tree import ExpansionVector
from specinfer.v1 import generation_pb2
from tests.support.tiny_models import runner_of, tiny_transformers

MODEL = tiny_transformers("llama", seed=3)
PROMPTS = [
    EvaluationPrompt("a", (5, 17, 3)),
    EvaluationPrompt("b", (41, 9)),
    EvaluationPrompt("b", (60, 2, 71, 33)),
]


def twin(*widths: int) -> SsmDrafter:
    """Return a drafter that runs the target itself: its first guess is always right."""
    shape = GrowthShape(ExpansionVector(widths) if widths else None)
    return SsmDrafter(runner_of(MODEL), DrafterDescription("twin", 97), shape)


def test_a_perfect_drafter_succeeds_always_and_fills_every_step() -> None:
    runner = runner_of(MODEL)
    assert success(runner, twin(), PROMPTS, 0.0, 6) == {"a": [100.0] * 5, "b": [100.0] * 5}
    plan = DecodingPlan(nodes=20, depth=3, temperature=0, new_tokens=12)
    result = Decoding(runner, [twin(2, 1, 1)], plan).run(PROMPTS)
    assert result.tokens_per_step() == 4
    assert result.tokens_per_step("b") == 4
    runner.cache.check()
    assert runner.cache.free_tokens == runner.cache.capacity_tokens


def test_without_a_right_guess_a_step_gives_one_token() -> None:
    plan = DecodingPlan(nodes=4, depth=3, temperature=0, new_tokens=5, batch=2, calibrated=True)
    result = Decoding(runner_of(MODEL), [NgramDrafter(4, 4)], plan).run(PROMPTS)
    assert result.per_prompt == [("a", 5, 5), ("b", 5, 5), ("b", 5, 5)]


def test_answers_are_followed_to_where_the_target_ends_them() -> None:
    plan = DecodingPlan(nodes=20, depth=3, temperature=0, new_tokens=6)
    (output,) = Decoding(runner_of(MODEL), [], plan).run(PROMPTS[:1]).answers
    end = next(i for i, token in enumerate(output) if i and token not in output[:i])
    ending = tiny_transformers("llama", seed=3, eos_token_id=output[end])
    for drafter in (NgramDrafter(4, 4), twin(2, 1, 1)):
        ((_, _, tokens),) = Decoding(runner_of(ending), [drafter], plan).run(PROMPTS[:1]).per_prompt
        assert tokens == end + 1
    assert len(guesses(runner_of(ending), twin(), PROMPTS[:1], 0.0, 6)["a"]) == end + 1


class Gateway:
    """A fake gateway: requests of given lengths, one token per turn of the event loop."""

    def __init__(self, *lengths: int) -> None:
        self.tokens, self._lengths = 0, iter(lengths)

    async def generate(self, request: generation_pb2.GenerateRequest) -> Answer:
        for _ in range(next(self._lengths)):
            await asyncio.sleep(0)
            self.tokens += 1
        return Answer()

    async def status(self) -> generation_pb2.StatusReply:
        return generation_pb2.StatusReply(new_tokens=self.tokens)


async def test_a_load_signals_when_its_batch_is_no_longer_full() -> None:
    """Two slots, three requests: the third one starts after the first; the second one's slot stays empty."""
    gateway, drained = Gateway(4, 8, 40), asyncio.Event()
    two = Load(2, generation_pb2.SPECULATION_OFF, 8)
    load = generate_all(gateway, [[1]] * 3, two, drained)  # type: ignore[arg-type]
    work = asyncio.create_task(load)
    await drained.wait()
    assert gateway.tokens in range(14, 19), "4 + 8, and what the third had by then"
    assert len(await work) == 3
    answers, speed = await sustained(Gateway(4, 8, 40), [[1]] * 3, two)  # type: ignore[arg-type]
    assert len(answers) == 3
    assert speed > 0


def test_every_turn_has_all_sources_and_enough_prompts() -> None:
    prompts = [EvaluationPrompt(source, (i,)) for source in "abc" for i in range(10)]
    parts = [part_of(prompts, turn, 1) for turn in range(TURNS)]
    assert sorted(map(repr, (p for part in parts for p in part))) == sorted(map(repr, prompts)), (
        "each prompt once"
    )
    assert all({p.source for p in part} == set("abc") for part in parts)
    assert [len(part_of(prompts, turn, 4)) for turn in range(TURNS)] == [12] * TURNS
    assert len(part_of(prompts, 1, 16)) == 30, "there are no more"


def answer(seconds: float, tokens: int, steps: int) -> Answer:
    """Return an answer of some tokens, whose first token came at once."""
    stats = generation_pb2.SpeculationStats(steps=steps, accepted=tokens - steps)
    summary = generation_pb2.Summary(stats=stats)
    return Answer(token_ids=[1] * tokens, tpot_s=seconds / (tokens - 1), ttft_s=0.0, summary=summary)


def test_gains_are_over_plain_decoding_of_the_same_turns() -> None:
    plain = Measured([100.0, 50.0], [answer(2.0, 100, 100)])
    tree = Measured([150.0, 100.0], [answer(1.0, 100, 50)])
    about = {"command": "c", "commit": "1", "time": "t", "cores": 2, "cpu": "x"}
    results = {"greedy": {1: {"plain": plain, "trees": tree}}}
    lines = markdown({"about": about, "prompts": 1, "new_tokens": 8}, "; m", results).splitlines()
    assert "| plain | 1 | 75 |  | 20.0 | 1.00 |" in lines
    assert "| trees | 1 | 125 | 1.75x (1.62 to 1.88) | 10.0 | 2.00 |" in lines
