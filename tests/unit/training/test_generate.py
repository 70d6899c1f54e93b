"""Continuations by a tiny target: independent of the batch, and an interrupted run continues."""

from pathlib import Path

import pytest
import torch
from scipy import stats

from specinfer.errors import InvalidInputError
from specinfer.model.runner import ModelRunner
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import (
    Continuation,
    finished_jobs,
    open_prompt,
    read_corpus,
    usable,
    whole_prompt,
    write_continuations,
)
from specinfer.training.generate import ContinuationJob, continue_prompts
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import reference_logits, runner_of, tiny_transformers

MODEL = tiny_transformers("llama", seed=5)
STOP = 2


def jobs() -> list[ContinuationJob]:
    prompts = [(5,), (17, 3, 88), (9, 60, 71, 33, 34), (41, 11), (1, 2, 3, 4), (77,), (52, 53)]
    return [ContinuationJob(f"j{i}", p, 0.9 if i % 2 else 0.0, 100 + i) for i, p in enumerate(prompts)]


def run(runner: ModelRunner, which: list[ContinuationJob], batch: int) -> dict[str, tuple[int, ...]]:
    return {job.job_id: item.output for job, item in continue_prompts(runner, which, batch, 9, [STOP])}


def test_a_continuation_does_not_depend_on_its_batch_mates() -> None:
    runner = runner_of(MODEL)
    together = run(runner, jobs(), 3)
    assert set(together) == {job.job_id for job in jobs()}
    for job in jobs():
        assert run(runner, [job], 1)[job.job_id] == together[job.job_id]
    runner.cache.check()
    assert runner.cache.free_tokens == runner.cache.capacity_tokens


def test_greedy_continuations_are_those_of_transformers() -> None:
    for job_id, output in run(runner_of(MODEL), jobs(), 4).items():
        job = next(job for job in jobs() if job.job_id == job_id)
        if job.temperature:
            continue
        tokens = list(job.prompt)
        for token in output:
            assert token == int(reference_logits(MODEL, tokens)[-1].argmax())
            tokens.append(token)
        assert len(output) == 9 or output[-1] == STOP


def test_sampled_tokens_follow_the_tempered_distribution() -> None:
    """Chi-square test of 400 first tokens over the likely ones; probability of a false alarm 1e-4."""
    many = [ContinuationJob(str(seed), (17, 3, 88), 0.9, seed) for seed in range(400)]
    firsts = [item.output[0] for _, item in continue_prompts(runner_of(MODEL), many, 50, 1, [STOP])]
    p = (reference_logits(MODEL, [17, 3, 88])[-1] / 0.9).softmax(-1).double()
    likely = p.topk(5).indices.tolist()
    counts = [firsts.count(token) for token in likely]
    expected = [400 * float(p[token]) for token in likely]
    counts.append(400 - sum(counts))
    expected.append(400 - sum(expected))
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    assert len(set(firsts)) > 3


def test_an_interrupted_run_continues_with_the_missing_jobs(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert finished_jobs(path) == {}
    rows = [("a", Continuation((1, 2), (3,))), ("b", Continuation((4,), (5, 6)))]
    assert write_continuations(path, rows) == 2
    with path.open("a") as file:
        file.write('{"id": "c", "p": [1')  # interrupted here
    assert list(finished_jobs(path)) == ["a", "b"]
    write_continuations(path, [("c", Continuation((7,), (8,)))])
    done = finished_jobs(path)
    assert list(done) == ["a", "b", "c"]
    assert done["b"].output == (5, 6)


def test_labels_are_the_targets_most_probable_tokens_also_after_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    made = continue_prompts(runner_of(MODEL), jobs(), 3, 9, [STOP], label_width=6)
    assert write_continuations(path, ((job.job_id, item) for job, item in made)) == len(jobs())
    for item in read_corpus(path):
        rows = reference_logits(MODEL, [*item.prompt, *item.output])[len(item.prompt) - 1 : -1]
        expected = rows.topk(6)
        assert item.labels is not None
        assert item.labels.ids.tolist() == expected.indices.tolist()
        torch.testing.assert_close(
            torch.tensor(item.labels.probabilities).float(), expected.values.softmax(-1), rtol=0, atol=1e-3
        )


def test_damaged_labels_are_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    for damaged in ("AAAA", "?"):
        path.write_text('{"p": [1], "o": [2, 3], "labels": "' + damaged + '"}\n')
        with pytest.raises(InvalidInputError, match=r"corpus\.jsonl:1: labels = "):
            read_corpus(path)


class _Chat(Tokenizer):
    """Returns a conversation as characters."""

    has_chat_template = True

    def __init__(self) -> None:
        pass

    def encode_chat(self, messages: object) -> list[int]:
        text = "<user>" + messages[0]["content"] + "</user><answer>"  # type: ignore[index]
        return [ord(c) for c in text]


def test_an_open_user_turn_ends_where_the_users_text_begins() -> None:
    tokenizer = _Chat()
    assert "".join(map(chr, open_prompt(tokenizer, [STOP]))) == "<user>"
    assert "".join(map(chr, whole_prompt(tokenizer, "hi"))) == "<user>hi</user><answer>"
    assert usable(tokenizer, [5, 6, 7, 8, STOP], [STOP])
    assert not usable(tokenizer, [5, 6, 7, 8, 9], [STOP])
    assert not usable(tokenizer, [5, STOP], [STOP])


def test_a_base_model_gets_plain_text_and_invents_beginnings_of_documents() -> None:
    tokenizer = Tokenizer(ascii_tokenizer()._fast, None, {})
    assert whole_prompt(tokenizer, "hi") == tuple(tokenizer.encode("hi"))
    assert open_prompt(tokenizer, [STOP]) == (STOP,), "the token between documents"
    assert usable(tokenizer, [5, 6, 7, 8, 9], [STOP])
    assert not usable(tokenizer, [5, STOP], [STOP])
