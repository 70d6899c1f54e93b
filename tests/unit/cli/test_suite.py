"""`python -m benchmarks.suite` and `bench compare`: what is measured, resumed, and called a difference."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.suite import command as under_test
from benchmarks.suite.command import suite
from benchmarks.suite.perplexity import Scorer
from benchmarks.suite.plan import QUICK, SuitePlan, runs_of
from benchmarks.suite.pools import MERGED, UNTRAINED, SuitePool, methods, suite_pools
from specinfer.cli.bench import BenchRun, Turn
from specinfer.cli.compare import compare, differences, read_runs
from specinfer.client import Answer, SpeculationStats, Summary
from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.hub import DEFAULT_MODEL
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.prompts import PromptRow, read_prompts_by_source
from tests.chaos.model_directory import write_model


def run(mode: str, batch: int, rate: float = 100.0, error: float | None = 2.0) -> BenchRun:
    times = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
    return BenchRun(
        *(
            mode,
            batch,
            8,
            64,
            1.0,
            4,
            rate,
            error,
            rate / 100,
            error and error / 100,
            40,
            1.6,
            0.3,
            True,
            1.0,
        ),
        *(times, times, {}),
    )


def result(path: Path, *runs: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"runs": runs}))
    return path


def test_every_method_is_there_alone_and_in_the_merged_pool() -> None:
    pools = suite_pools(DEFAULT_MODEL)
    alone = list(methods(DEFAULT_MODEL))
    assert {*UNTRAINED, "ssm"} <= set(alone) <= set(pools)
    assert list(pools[MERGED].speculators) == alone
    assert pools["ssm"].speculators["ssm"]["model"] == "ssm-smollm2-135m"
    assert list(methods("other")) == list(UNTRAINED)
    lengths = [pool.gateway["sequence-length"] for name, pool in pools.items() if "K =" in name]
    assert lengths == ["4", "6", "8"]


class Machine:
    """Measures nothing, and fails once if told to."""

    def __init__(self, fails_at: str = "") -> None:
        self.measured: list[str] = []
        self._fails_at = fails_at

    def measure(self, name: str, pool: SuitePool, _: Any, plan: SuitePlan, scorer: Any) -> tuple[Any, Any]:
        if name == self._fails_at:
            self._fails_at = ""
            raise UnavailableError("the machine was switched off")
        self.measured.append(name)
        held = {"memory_mib": 700.0, "memory_growth_mib": 1.5, "dropped_tokens": 0, "perplexity": 2.0}
        faster = 1.5 if name == "suffix" else 1.0 if name == MERGED else 1.2
        of = {"speedup": faster, "speedup_error": 0.1, "acceptance_length": 1.6}
        by_source = {"by_source": {"a": of, "b": of}, "tokens_per_step": [1.5, 1.7]}
        return [
            {"pool": name, **asdict(run(mode, batch)), **held, **(by_source if batch == 1 else {})}
            for batch in plan.size.batches
            for mode in pool.modes
        ], [(1, 7000), (9, 14500)]


def test_a_suite_that_was_interrupted_goes_on_and_another_plan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, out, machine = tmp_path / "prompts.jsonl", tmp_path / "suite.json", Machine("recycling")
    prompts.write_text("\n".join(json.dumps({"turns": [text], "source": text}) for text in "ab"))
    monkeypatch.setattr(under_test, "measure_pool", machine.measure)
    monkeypatch.setattr(under_test, "Scorer", lambda *_, **__: None)
    monkeypatch.setattr(under_test, "resolve_model", Path)
    with pytest.raises(UnavailableError):
        suite(prompts, out, model="other")
    suite(prompts, out, model="other")
    assert machine.measured == list(suite_pools("other")), "nothing twice"
    text = out.with_suffix(".md").read_text()
    assert "| recycling | 100 | 100 | 1.00x ± 0.02 | 1.60 |" in text
    assert text.count("## Batch") == 2
    for source in "ab":
        assert f"| {source} | suffix | 1.50x ± 0.10 | 1.00x ± 0.10 | no |" in text, "0.5 behind, noise 0.28"
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(pictures) == 5
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    with pytest.raises(InvalidInputError, match="holds a suite with another plan"):
        suite(prompts, out, model="other", temperature=0.8)
    for other in ("not JSON", "[1]", json.dumps(json.loads(out.read_text()) | {"runs": None})):
        out.write_text(other)
        with pytest.raises(InvalidInputError, match="holds something else"):
            suite(prompts, out, model="other")
    with pytest.raises(InvalidInputError, match="is where the tables go"):
        suite(prompts, tmp_path / "suite.md", model="other")


def test_an_interruption_while_results_are_written_costs_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, text: str) -> None:
        path.write_bytes(text[: len(text) // 2].encode())
        raise KeyboardInterrupt

    prompts, out, machine = tmp_path / "prompts.jsonl", tmp_path / "suite.json", Machine("suffix")
    prompts.write_text(json.dumps({"turns": ["a"]}))
    monkeypatch.setattr(under_test, "measure_pool", machine.measure)
    monkeypatch.setattr(under_test, "Scorer", lambda *_, **__: None)
    monkeypatch.setattr(under_test, "resolve_model", Path)
    with pytest.raises(UnavailableError):
        suite(prompts, out, model="other")
    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        suite(prompts, out, model="other")
    assert {run["pool"] for run in json.loads(out.read_text())["runs"]} == {"ngram"}


@pytest.mark.parametrize("raw", [False, True])
def test_perplexity_is_that_of_the_answers_behind_the_prompts_as_they_are_sent(
    tmp_path: Path, raw: bool
) -> None:
    directory = write_model(tmp_path / "model")
    scorer = Scorer(directory, "float32", "auto", chat=not raw)
    prompts = [PromptRow("hm?"), PromptRow("why is it so?")]
    answers = [[40, 41, 42], [50, 51]]
    asked = ["hm?", "why is it so?"] if raw else ["u:hm?;a:", "u:why is it so?;a:"]
    model, total = AutoModelForCausalLM.from_pretrained(directory), 0.0
    for text, answer in zip(asked, answers, strict=True):
        tokens = [2 + ord(character) - 32 for character in text]
        with torch.inference_mode():
            logits = model(torch.tensor([[*tokens, *answer]])).logits[0, len(tokens) - 1 : -1]
        total += float(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum())
    turns = [turn(answer, 1) for answer in answers]
    assert scorer.perplexity(prompts, turns) == pytest.approx(math.exp(-total / 5), rel=1e-4)


def test_the_target_that_scores_holds_its_weights_as_the_verifier_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(_: Path, options: RunnerOptions) -> None:
        asked.append(options.weights)
        raise UnavailableError("far enough")

    monkeypatch.setattr(ModelRunner, "load", load)
    directory = write_model(tmp_path / "model")
    for weights in ("q4_1", "auto"):
        with pytest.raises(UnavailableError):
            Scorer(directory, "bfloat16", weights).of([((1, 2), (3,))])
    assert asked == ["q4_1", "auto"]


def test_prompts_are_spread_over_sources_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"turns": [f"{source}{i}"], "source": source} for source in "ab" for i in range(6)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [prompt.text for prompt in read_prompts_by_source(path, 5)] == ["a0", "b0", "a2", "b2", "a4"]
    assert len(read_prompts_by_source(path, 100)) == 12
    path.write_text("\n".join(map(json.dumps, [*rows, {"turns": ["c"], "source": None}])))
    found = read_prompts_by_source(path, 7)
    assert [prompt.source for prompt in found] == ["a", "b", "", "a", "b", "a", "b"], (
        "few of one: more of others"
    )
    path.write_text("\n")
    with pytest.raises(InvalidInputError, match="no prompts in it"):
        read_prompts_by_source(path, 5)


def turn(tokens: Sequence[int], steps: int, seconds: float = 1.0) -> Turn:
    stats = SpeculationStats(steps=steps, drafted=9, accepted=len(tokens) - steps)
    return Turn([Answer(token_ids=list(tokens), summary=Summary(stats=stats))], seconds)


def test_runs_are_told_by_source_where_a_turn_is_one_prompt() -> None:
    plan = SuitePlan((PromptRow("x", "a"), PromptRow("y", "b"), PromptRow("z", "a")), QUICK, 0.0)
    turns = {
        "incremental": [turn([1, 2, 3, 4], 4, 4.0)] * 3,
        "tree": [turn([1, 2, 3, 4], 2, 2.0), turn([1, 2, 3, 4], 4, 4.0), turn([1, 2, 3, 4], 1, 1.0)],
    }
    tree = runs_of(plan, 1, turns)[1]
    assert tree["tokens_per_step"] == [2.0, 1.0, 4.0]
    assert tree["by_source"]["a"]["speedup"] == pytest.approx(8 / 3)
    assert tree["by_source"]["a"]["acceptance_length"] == pytest.approx(1 + 5 / 3)
    assert tree["by_source"]["b"] == {"speedup": 1.0, "speedup_error": None, "acceptance_length": 1.0}
    assert "by_source" not in runs_of(plan, 4, turns)[1]
    assert plan.bench(("tree",)).chat
    raw = replace(plan, chat=False)
    assert not raw.bench(("tree",)).chat
    assert raw.to_json() != plan.to_json(), "raw prompts are another suite"


def test_only_what_is_beyond_the_noise_is_called_a_difference(tmp_path: Path) -> None:
    def rows(rate: float, error: float | None) -> Iterator[dict[str, Any]]:
        yield {"pool": "p", **asdict(run("tree", 1, rate, error))}

    def verdict(second: float, error: float | None = 2.0) -> str:
        first = read_runs(result(tmp_path / "a.json", *rows(100.0, 2.0)))
        return differences(first, read_runs(result(tmp_path / "b.json", *rows(second, error))))[0].verdict

    # the ratio's standard error is 0.028 here
    assert [verdict(rate) for rate in (100.0, 105.0, 107.0, 93.0)] == [
        *("within noise", "within noise"),
        *("faster", "slower"),
    ]
    assert verdict(200.0, None) == "noise unknown"


def test_results_that_cannot_be_compared_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = result(tmp_path / "a.json", asdict(run("tree", 1)), asdict(run("tree", 4)))
    b = result(tmp_path / "b.json", asdict(run("tree", 1)))
    compare(a, b)
    said = "".join(capsys.readouterr().out.split())  # a terminal as narrow as that of tests breaks lines
    assert f"notin{b}:tree,batch4" in said
    with pytest.raises(InvalidInputError, match="no run in common"):
        compare(a, result(tmp_path / "c.json", asdict(run("sequence", 1))))
    (tmp_path / "d.json").write_text("[1]")
    for name, why in (("d.json", "is no result"), ("none.json", "No such file")):
        with pytest.raises(InvalidInputError, match=why):
            compare(a, tmp_path / name)
