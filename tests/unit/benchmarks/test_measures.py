"""Benchmarks compute the right figures from what they measure, on a tiny model where the answer is known."""

import asyncio
import math
from pathlib import Path

import pytest

from benchmarks.acceptance import KINDS
from benchmarks.drafts.decoding import Decoding, DecodingPlan, Result
from benchmarks.drafts.end_to_end import TURNS, Measured, Tally, part_of
from benchmarks.drafts.plots import plot_distribution, plot_latency
from benchmarks.drafts.prompts import EvaluationPrompt
from benchmarks.drafts.report import SHAPES, WIDTHS, markdown
from benchmarks.drafts.success import guesses, success
from benchmarks.load import Load, generate_all, sustained
from benchmarks.peers.measure import Recorder
from benchmarks.runtime import ours
from benchmarks.runtime.report import pass_cells
from specinfer.client import Answer
from specinfer.drafters import DrafterDescription
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.ssm import SsmDrafter
from specinfer.model.drafting.task import GrowthShape
from specinfer.tree import ExpansionVector
from specinfer.v1 import generation_pb2
from tests.support.tiny_models import reference_logits, runner_of, tiny_transformers

MODEL = tiny_transformers("llama", seed=3)
PROMPTS = [
    EvaluationPrompt("a", (5, 17, 3)),
    EvaluationPrompt("b", (41, 9)),
    EvaluationPrompt("b", (60, 2, 71, 33)),
]


def twin(*widths: int) -> SsmDrafter:
    """A drafter that is the target itself: its first guess is always right."""
    shape = GrowthShape(ExpansionVector(widths) if widths else None)
    return SsmDrafter(runner_of(MODEL), DrafterDescription("twin", 97), shape)


def test_a_perfect_drafter_succeeds_always_and_fills_every_step() -> None:
    runner = runner_of(MODEL)
    assert success(runner, twin(), PROMPTS, 0.0, 6) == {"a": [100.0] * 5, "b": [100.0] * 5}
    plan = DecodingPlan(nodes=20, depth=3, temperature=0, new_tokens=12)
    result = Decoding(runner, [twin(2, 1, 1)], plan).run(PROMPTS)
    assert result.tokens_per_step() == 4
    assert result.tokens_per_step("b") == 4
    assert result.distribution() == [4, 4, 4]
    runner.cache.check()
    assert runner.cache.free_tokens == runner.cache.capacity_tokens


def test_without_a_right_guess_a_step_brings_one_token() -> None:
    plan = DecodingPlan(nodes=4, depth=3, temperature=0, new_tokens=5, batch=2, calibrated=True)
    result = Decoding(runner_of(MODEL), [NgramDrafter(4, 4)], plan).run(PROMPTS)
    assert result.per_prompt == [("a", 5, 5), ("b", 5, 5), ("b", 5, 5)]


def test_answers_are_followed_to_where_the_target_ends_them() -> None:
    output, _, _ = ours.decode_one(runner_of(MODEL), list(PROMPTS[0].tokens), 6)
    end = next(i for i, token in enumerate(output) if i and token not in output[:i])
    ending = tiny_transformers("llama", seed=3, eos_token_id=output[end])
    for drafter in (NgramDrafter(4, 4), twin(2, 1, 1)):
        plan = DecodingPlan(nodes=20, depth=3, temperature=0, new_tokens=6)
        ((_, _, tokens),) = Decoding(runner_of(ending), [drafter], plan).run(PROMPTS[:1]).per_prompt
        assert tokens == end + 1
    assert len(guesses(runner_of(ending), twin(), PROMPTS[:1], 0.0, 6)["a"]) == end + 1


def test_perplexity_is_that_of_the_target() -> None:
    outputs = [[7, 8, 9], [11, 12, 13]]
    losses = []
    for prompt, output in zip(PROMPTS, outputs, strict=False):
        logp = reference_logits(MODEL, [*prompt.tokens, *output]).log_softmax(-1)
        start = len(prompt.tokens) - 1
        losses += [-float(logp[start + i, token]) for i, token in enumerate(output)]
    found = ours.perplexity(runner_of(MODEL), [list(p.tokens) for p in PROMPTS[:2]], outputs)
    assert math.isclose(found, math.exp(sum(losses) / len(losses)), rel_tol=1e-4)


def test_a_windowed_answer_reports_what_its_cache_held() -> None:
    whole, windowed = runner_of(MODEL), runner_of(MODEL, kv_window=32, kv_sinks=4)
    prompt = [5, 17, 3, 88]
    output, held, slides = ours.decode_one(whole, prompt, 100)
    assert (len(output), slides) == (100, 0)
    assert held >= 103
    _, held, slides = ours.decode_one(windowed, prompt, 100)
    assert held <= 64
    assert slides > 0
    assert ours.window(windowed, [prompt], 50)["kv_growth_mib"] > 0


def test_a_recorder_leaves_the_first_request_out() -> None:
    recorder = Recorder()
    for output in ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]):
        recorder.begin()
        recorder.tick()
        recorder.tick()
        recorder.end(output)
    report = recorder.report(proposed=12)
    assert report["outputs"] == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert report["tokens_per_round"] == 2
    assert report["acceptance_rate"] == 0.5
    assert recorder.rate(4) > 0


def test_the_error_of_tokens_per_step_is_that_over_prompts() -> None:
    alike = Result([("a", 10, 20), ("a", 10, 30), ("b", 10, 40)])
    assert alike.standard_error() == pytest.approx(1 / math.sqrt(3)), "a mean of 2, 3 and 4"
    assert Result([("a", 4, 8), ("a", 40, 80)]).standard_error() == 0


def test_the_drafts_report_has_every_source_beside_the_paper() -> None:
    names = [
        *(
            f"{kind} {shape.format(k=k, n=8 * k)}"
            for kind in KINDS
            for shape in SHAPES.values()
            for k in WIDTHS
        ),
        *("stochastic <5,1,1,...>, naive", "greedy ssm"),
    ]
    steps = {name: {"all": 2.0, "gsm8k": 3.0} for name in names}
    steps["stochastic <5,1,1,...>, naive"] = {"all": 1.6, "gsm8k": 2.0}
    success = {kind: {"gsm8k": [50.0] * 5} for kind in KINDS}
    about = {"command": "c", "commit": "1", "time": "t", "cores": 2, "cpu": "x"}
    report = {"about": about, "prompts": 2, "new_tokens": 8, "success": success, "tokens_per_step": steps}
    lines = markdown(report | {"standard_error": dict.fromkeys(names, 0.1)}).splitlines()
    for expected in (
        "| paper, Alpaca | 1.87 | 2.38 | 1.27 |",
        "| gsm8k | 2.00 | 3.00 | 1.50 |",
        "| paper, PIQA | 1.67 | 1.93 | 2.08 | 2.15 | 2.21 |",
        "| all, <k,1,1,...> | " + " | ".join(["2.00 ± 0.10"] * 5) + " |",
        "| gsm8k, best-first, 8k nodes | " + " | ".join(["3.00"] * 5) + " |",
        "| greedy ssm | 2.00 ± 0.10 | 3.00 |",
    ):
        assert expected in lines


def test_plots_are_drawn(tmp_path: Path) -> None:
    plot_distribution(tmp_path / "a.png", {1: [1.0, 2.0], 2: [2.0, 3.0]}, "title")
    plot_latency(tmp_path / "b.png", {1: {1: 10.0, 2: 9.0}, 4: {1: 20.0, 2: 21.0}}, "title")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png"))


def test_pass_costs_leave_the_cache_as_it_was() -> None:
    runner = runner_of(tiny_transformers("llama", vocab_size=49152))
    costs = ours.pass_costs(runner, 40, (1, 4))
    assert set(costs) == {"1", "4"}
    assert all(cost["p25"] <= cost["median"] <= cost["p75"] for cost in costs.values())
    runner.cache.check()


def test_passes_are_told_with_the_range_of_their_ratios() -> None:
    near, apart = (
        {str(n): {"median": one + n * each} for n in (1, 16)} for one, each in ((7.0, 0.1), (3.0, 0.25))
    )
    cells = pass_cells([near, apart, near])
    assert cells[0] == "7.10 (1.00x)"
    assert cells[3] == "8.60 (1.21x; 1.21x to 2.15x)"
    assert cells[1] == cells[4] == ""  # not measured
    assert pass_cells([apart])[3] == "7.00 (2.15x)"


class Gateway:
    """As much of a gateway as a load sees: requests of given lengths, a token per turn of the event loop."""

    def __init__(self, *lengths: int) -> None:
        self.tokens, self._lengths = 0, iter(lengths)

    async def generate(self, request: generation_pb2.GenerateRequest) -> Answer:
        for _ in range(next(self._lengths)):
            await asyncio.sleep(0)
            self.tokens += 1
        return Answer()

    async def status(self) -> generation_pb2.StatusReply:
        return generation_pb2.StatusReply(new_tokens=self.tokens)


async def test_a_load_tells_when_its_batch_is_no_longer_full() -> None:
    """Two slots, three requests: the first one's place is taken by the third, the second one's by nobody."""
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


def test_gains_are_over_plain_decoding_of_the_same_turns() -> None:
    plain, tree = Measured([100.0, 50.0]), Measured([150.0, 100.0])
    plain.by_source["a"], tree.by_source["a"] = Tally(2.0, 100, 100, 0), Tally(1.0, 100, 50, 50)
    report = tree.beside(plain)
    assert math.isclose(report["tokens_per_second"], 120)
    assert math.isclose(report["gain"], 120 / (200 / 3))
    assert math.isclose(report["gain_error"], 0.25), "gains of 1.5 and 2"
    assert report["by_source"] == {"a": {"gain": 2.0, "acceptance_length": 2.0}}
    assert plain.beside(plain)["gain_error"] == 0
