"""Training of an SSM on a tiny target: it learns, continues after an interruption, and drafts."""

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from specinfer.drafters import DrafterOptions, DraftJob
from specinfer.drafters.ssm import SsmDrafter
from specinfer.errors import IncompatibleError, InvalidInputError, SettingError
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import load_ssm, save_ssm, verifier_of
from specinfer.model.weights.families import open_weights
from specinfer.model.weights.files import SafetensorsWeights
from specinfer.model.weights.source import is_draft_checkpoint
from specinfer.request.sampling import Sampling
from specinfer.training import distil as distilling
from specinfer.training.corpus import (
    Continuation,
    Examples,
    Labels,
    frequent_tokens,
    read_corpus,
    split_corpus,
    without_prompts_of,
    write_continuations,
)
from specinfer.training.distil import (
    DistilOptions,
    distil,
    ranks,
)
from specinfer.training.generate import in_draft_vocabulary, label_corpus
from specinfer.training.student import Student
from specinfer.training.train_ssm import missed_by_all, pool_report, train_ssm
from specinfer.tree import TokenTree, TreeLimits
from tests.support.models.saved_model import save_target
from tests.support.tiny_models import FAMILIES, MIXTURES, reference_logits, tiny_transformers

VOCABULARY = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"), initializer_range=0.4)


@pytest.fixture(scope="module")
def runner(target: Path) -> ModelRunner:
    return load_checked(target, RunnerOptions(dtype="float32", kv_tokens=512))


@pytest.fixture(scope="module")
def corpus() -> list[Continuation]:
    """Return greedy continuations of random prompts by the tiny target."""
    model = tiny_transformers("llama", initializer_range=0.4)
    rng = np.random.default_rng(0)
    items = []
    for _ in range(60):
        prompt = rng.integers(3, 97, int(rng.integers(2, 6))).tolist()
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        items.append(Continuation(tuple(prompt), tuple(out[0, len(prompt) :].tolist())))
    return items


@pytest.fixture(scope="module")
def vocabulary(corpus: list[Continuation]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return frequent_tokens(corpus, VOCABULARY)


@pytest.fixture(scope="module")
def labels(
    runner: ModelRunner,
    corpus: list[Continuation],
    vocabulary: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Labels]:
    directory = tmp_path_factory.mktemp("labels")
    return label_corpus(runner, corpus, vocabulary, directory, 8, lambda *_: None)  # type: ignore[arg-type]


def test_labels_are_the_targets_own_distribution(
    target: Path, corpus: list[Continuation], labels: list[Labels], vocabulary: object
) -> None:
    model = tiny_transformers("llama", initializer_range=0.4)
    chosen = torch.from_numpy(vocabulary)
    for item, label in list(zip(corpus, labels, strict=True))[:5]:
        rows = reference_logits(model, [*item.prompt, *item.output])[len(item.prompt) - 1 : -1]
        expected = rows.softmax(-1)[:, chosen].topk(8, dim=-1)
        assert label.ids.tolist() == expected.indices.tolist()
        p = expected.values / expected.values.sum(-1, keepdim=True)
        np.testing.assert_allclose(label.probabilities, p.numpy(), atol=1e-3)


def test_labels_are_not_computed_twice(
    runner: ModelRunner, corpus: list[Continuation], vocabulary: object, tmp_path: Path
) -> None:
    first = label_corpus(runner, corpus[:5], vocabulary, tmp_path, 4, lambda *_: None)  # type: ignore[arg-type]
    again = label_corpus(None, corpus[:5], vocabulary, tmp_path, 4, lambda *_: None)  # type: ignore[arg-type]
    assert [x.ids.tolist() for x in again] == [x.ids.tolist() for x in first]


def test_labels_of_a_corpus_lose_tokens_outside_the_draft_vocabulary() -> None:
    ids = np.array([[9, 4, 30], [7, 30, 8]], np.int32)
    labels = Labels(ids, np.array([[0.5, 0.25, 0.25], [0.5, 0.3, 0.2]], np.float16))
    vocabulary = np.array([3, 4, 9, 12])
    kept = in_draft_vocabulary(labels, vocabulary)
    np.testing.assert_allclose(kept.probabilities, [[2 / 3, 1 / 3, 0], [0, 0, 0]], atol=1e-3)
    assert vocabulary[kept.ids[0, :2]].tolist() == [9, 4]


def make_student(target: Path, vocabulary: object) -> Student:
    chosen = torch.from_numpy(vocabulary)
    torch.manual_seed(0)
    return Student.from_target(load_config(target), SafetensorsWeights(target), [0], chosen)


def first_guesses(student: Student, examples: Examples, vocabulary: torch.Tensor) -> float:
    """Return the share of the target's tokens that are the student's first guess."""
    return float((np.concatenate(ranks(student, examples, vocabulary, 1)) < 1).mean())


def test_the_student_learns_the_guesses_of_the_target(
    target: Path, corpus: list[Continuation], labels: list[Labels], vocabulary: object, tmp_path: Path
) -> None:
    student = make_student(target, vocabulary)
    chosen = torch.from_numpy(vocabulary)
    before = first_guesses(student, Examples(corpus, labels), chosen)
    options = DistilOptions(minutes=0.05, learning_rate=5e-3, tokens_per_batch=256)
    seen = distil(student, Examples(corpus, labels), options, tmp_path / "state.pt", lambda *_: None)
    after = first_guesses(student, Examples(corpus, labels), chosen)
    assert seen > 0
    assert after > before + 0.2


def test_an_interrupted_run_continues_at_its_last_step(
    target: Path,
    corpus: list[Continuation],
    labels: list[Labels],
    vocabulary: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distilling, "SAVE_EVERY_S", 0.0)
    options = DistilOptions(minutes=10.0, tokens_per_batch=256)
    state = tmp_path / "state.pt"

    def stop_after(steps: int) -> tuple[list[int], list[float]]:
        seen_at: list[int] = []
        minutes_at: list[float] = []

        def report(minutes: float, loss: float, seen: int) -> None:
            seen_at.append(seen)
            minutes_at.append(minutes)
            if len(seen_at) == steps:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            distil(make_student(target, vocabulary), Examples(corpus, labels), options, state, report)
        return seen_at, minutes_at

    first, _ = stop_after(4)
    second, minutes = stop_after(2)
    assert second[0] > first[2], "it counts on from the last saved step"
    assert minutes[0] > 0


def test_a_checkpoint_drafts_as_the_student_predicts(
    target: Path, corpus: list[Continuation], vocabulary: object, tmp_path: Path
) -> None:
    student, chosen = make_student(target, vocabulary), torch.from_numpy(vocabulary)
    save_ssm(tmp_path, student.tensors(), chosen, student.config, target, str(target), {"seed": 0})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(target)
    assert (config["speculators_model_type"], config["draft_vocab_size"]) == ("ssm", VOCABULARY)
    assert is_draft_checkpoint(tmp_path)
    assert not is_draft_checkpoint(target)
    assert verifier_of(tmp_path) == str(target)
    drafter = SsmDrafter.from_options(
        DrafterOptions(model=str(tmp_path), dtype="float32", kv_tokens=512, proposal="without_replacement")
    )
    context = list(corpus[0].prompt + corpus[0].output[:3])
    greedy, sampled = drafter.draft(
        [
            DraftJob("g", context, TreeLimits(4, 1), Sampling(temperature=0)),
            DraftJob("s", context, TreeLimits(4, 1), Sampling(seed=1)),
        ]
    )
    with torch.inference_mode():
        logits = student(torch.tensor([context]), torch.tensor([len(context) - 1]))[0].float()
    assert isinstance(greedy, TokenTree)
    assert sorted(greedy.token_ids[1:].tolist()) == sorted(chosen[logits.topk(4).indices].tolist())
    assert isinstance(sampled, TokenTree)
    (proposal,) = sampled.proposals
    assert set(proposal.q_token_ids.tolist()) <= set(chosen.tolist())
    position = {token: i for i, token in enumerate(chosen.tolist())}
    expected = logits.softmax(-1)[[position[token] for token in proposal.q_token_ids.tolist()]]
    np.testing.assert_allclose(proposal.q_probabilities, expected / expected.sum(), rtol=0.1, atol=0.01)


BEYOND_LLAMA = {"gemma", "gemma2", "gemma3", "smollm3", "granite", "olmo2", "olmo3", *MIXTURES}


@pytest.mark.parametrize("family", sorted(BEYOND_LLAMA))
def test_a_student_of_other_layers_is_refused(family: str, tmp_path: Path) -> None:
    tiny_transformers(family).save_pretrained(tmp_path)
    config = load_config(tmp_path)
    weights, everything = open_weights(tmp_path, config), torch.arange(config.vocab_size)
    with pytest.raises(IncompatibleError, match=r"a trained SSM: .*not supported"):
        Student.from_target(config, weights, range(config.layers), everything)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in BEYOND_LLAMA])
def test_a_student_is_of_its_targets_family(family: str, tmp_path: Path) -> None:
    """With all layers and tokens the student equals the target; its checkpoint runs like it; every tensor learns."""
    model = tiny_transformers(family)
    model.save_pretrained(tmp_path / "target")
    config = load_config(tmp_path / "target")
    weights, everything = open_weights(tmp_path / "target", config), torch.arange(config.vocab_size)
    student = Student.from_target(config, weights, range(config.layers), everything)
    rows = torch.tensor([[5, 17, 3, 88], [2, 71, 9, 0]])
    logits = student(rows, torch.arange(8))
    for actual, row in zip(logits.view(2, 4, -1), rows, strict=True):
        torch.testing.assert_close(actual, reference_logits(model, row.tolist()), rtol=1e-3, atol=1e-3)
    logits.logsumexp(-1).sum().backward()
    learning = {name for name, tensor in student.named_parameters() if tensor.grad.abs().max() > 0}
    # a bias that all keys share does not change attention
    assert {name for name, _ in student.named_parameters() if "k_proj/bias" not in name} <= learning

    ssm, directory = tmp_path / "ssm", tmp_path / "target"
    save_ssm(ssm, student.tensors(), everything, student.config, directory, family, {})
    draft = load_ssm(ssm, directory)
    runner = ModelRunner.build(draft.config, draft.weights, RunnerOptions(dtype="float32", kv_tokens=64))
    (again,) = runner.forward([Segment(runner.open(), rows[0].tolist(), want_last=True)])
    torch.testing.assert_close(again[0], reference_logits(model, rows[0].tolist())[-1], rtol=0.1, atol=0.3)


def test_the_command_trains_for_a_target_of_another_family(tmp_path: Path) -> None:
    model, target, lines = tiny_transformers("gpt_neox"), tmp_path / "target", tmp_path / "corpus.jsonl"
    save_target(target, model)
    rng = np.random.default_rng(0)
    items = [Continuation(tuple(rng.integers(3, 97, 4).tolist()), (i, 4, 5, 6)) for i in range(12)]
    labels = Labels(rng.integers(3, 97, (4, 32), np.int32), np.full((4, 32), 1 / 32, np.float16))
    rows = [dataclasses.replace(item, labels=labels) if i % 2 else item for i, item in enumerate(items)]
    write_continuations(lines, ((str(i), row) for i, row in enumerate(rows)))

    def train(**options: object) -> Path:
        out = tmp_path / "ssm"
        given = {"corpus": [lines], "model": str(target), "vocabulary": 40, "minutes": 0.01, "device": "cpu"}
        train_ssm(out=out, work=tmp_path / "work", **(given | options))  # type: ignore[arg-type]
        return out

    drafter = SsmDrafter.from_options(DrafterOptions(model=str(train()), dtype="float32", kv_tokens=512))
    labelled = [np.load(path)["lengths"] for path in (tmp_path / "work").glob("labels-*/*.npz")]
    assert sum(map(len, labelled)) == 6, "the target labels only rows without labels"
    prompt = list(items[0].prompt)
    (tree,) = drafter.draft([DraftJob("r", prompt, TreeLimits(4, 2), Sampling(temperature=0))])
    assert isinstance(tree, TokenTree)
    assert len(tree) == 5
    assert "--layers 0,2 " in json.loads((tmp_path / "ssm/config.json").read_text())["trained"]["command"]

    train(vocabulary=None, overwrite=True)  # as the README has it, for a target with few tokens
    trained = json.loads((tmp_path / "ssm/config.json").read_text())["trained"]["command"]
    assert "--vocabulary 97 " in trained

    for bad in ({"layers": "0,29"}, {"layers": "x"}, {"vocabulary": 98}, {"device": "abacus"}):
        (field, value), *_ = bad.items()
        with pytest.raises(SettingError, match=f"{field} = '?{value}'?"):
            train(**bad, overwrite=True)
    lines.write_text(lines.read_text().splitlines(keepends=True)[0])
    with pytest.raises(InvalidInputError, match="corpus = "):
        train(overwrite=True)


def test_a_checkpoint_for_another_target_is_refused(target: Path, vocabulary: object, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tiny_transformers("llama", seed=9).save_pretrained(other)
    student = make_student(target, vocabulary)
    chosen, name = torch.from_numpy(vocabulary), str(target)
    save_ssm(tmp_path / "ssm", student.tensors(), chosen, student.config, target, name, {})
    with pytest.raises(IncompatibleError, match="embeddings"):
        load_ssm(tmp_path / "ssm", other)


def test_the_corpus_is_read_split_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    rows = [{"p": [1, 2], "o": [3, 3, 4 + i]} for i in range(10)]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    corpus = read_corpus(path)
    assert corpus[0] == Continuation((1, 2), (3, 3, 4))
    training, held_out = split_corpus(corpus, 2)
    assert (len(training), len(held_out)) == (8, 2)
    assert not {dataclasses.astuple(c) for c in training} & {dataclasses.astuple(c) for c in held_out}
    assert frequent_tokens(corpus, 1).tolist() == [3]
    for name, message in (("none.jsonl", "No such file"), ("empty.jsonl", "is empty: must have lines")):
        (tmp_path / "empty.jsonl").touch()
        with pytest.raises(InvalidInputError, match=f"corpus = .*{name}.*: {message}"):
            read_corpus(tmp_path / name)
    (tmp_path / "bad.jsonl").write_text('{"p": [1]}\n')
    with pytest.raises(InvalidInputError, match=r"bad\.jsonl:1"):
        read_corpus(tmp_path / "bad.jsonl")
    assert without_prompts_of([Continuation((1, 2), (9,))], corpus) == []
    assert without_prompts_of([Continuation((1, 3), (9,))], corpus) == corpus


def test_ranks_are_those_of_the_true_token(
    target: Path, corpus: list[Continuation], labels: list[Labels], vocabulary: object
) -> None:
    student, chosen = make_student(target, vocabulary), torch.from_numpy(vocabulary)
    actual = ranks(student, Examples(corpus, labels), chosen, 3)
    for item, places in list(zip(corpus, actual, strict=True))[:20]:
        tokens = torch.tensor([item.prompt + item.output])
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            rows = student(tokens, torch.arange(len(item.prompt) - 1, tokens.shape[1] - 1)).float()
        best = chosen[rows.topk(3).indices].tolist()
        expected = [row.index(t) if t in row else 3 for row, t in zip(best, item.output, strict=True)]
        # padding may round differently: a near-tie can swap two places
        assert np.mean(places == np.array(expected)) > 0.8


def test_boosting_trains_on_tokens_that_the_pool_misses(
    target: Path, corpus: list[Continuation], labels: list[Labels], vocabulary: object, tmp_path: Path
) -> None:
    """The second SSM must cover more misses of the first one than the first one's second guess does."""
    chosen = torch.from_numpy(vocabulary)
    examples = Examples(corpus, labels)
    first = make_student(target, vocabulary)
    options = DistilOptions(minutes=0.03, learning_rate=5e-3, tokens_per_batch=256)
    distil(first, examples, options, tmp_path / "first.pt", lambda *_: None)
    rest = missed_by_all([first], examples, chosen)
    places = ranks(first, examples, chosen, 1)
    assert rest.counted is not None
    assert [c.tolist() for c in rest.counted] == [(p > 0).tolist() for p in places]
    kept = sum(int(c.sum()) for c in rest.counted)
    assert 0 < kept < sum(len(item.output) for item in corpus)
    indices = list(range(7))
    assert len(rest.batch(indices).rows) == sum(int(rest.counted[i].sum()) for i in indices)

    second = make_student(target, vocabulary)
    distil(second, rest, options, tmp_path / "second.pt", lambda *_: None)
    one, two = pool_report([first, second], examples, chosen)
    assert one["top1"] == one["union"] == one["first_ssm_with_as_many_guesses"]
    assert two["union"] > one["union"]
    assert two["union"] >= two["top1"]


def test_a_trained_ssm_is_a_start_for_the_next(target: Path, vocabulary: object, tmp_path: Path) -> None:
    student, chosen = make_student(target, vocabulary), torch.from_numpy(vocabulary)
    save_ssm(tmp_path, student.tensors(), chosen, student.config, target, str(target), {})
    again = Student.from_draft(load_ssm(tmp_path, target))
    for name, tensor in student.tensors().items():
        torch.testing.assert_close(again.tensors()[name], tensor, rtol=1e-2, atol=1e-2)
    tokens, rows = torch.tensor([[5, 9, 11]]), torch.tensor([2])
    torch.testing.assert_close(again(tokens, rows), student(tokens, rows), rtol=0.1, atol=0.1)


def test_inserted_layers_start_without_effect_and_learn(
    target: Path, corpus: list[Continuation], labels: list[Labels], vocabulary: object, tmp_path: Path
) -> None:
    shallow, chosen = make_student(target, vocabulary), torch.from_numpy(vocabulary)
    save_ssm(tmp_path / "start", shallow.tensors(), chosen, shallow.config, target, str(target), {})
    start = load_ssm(tmp_path / "start", target)
    deeper = Student.from_draft(start, SafetensorsWeights(target), [1, 0])
    assert deeper.layers == 3
    tokens, rows = torch.tensor([[5, 9, 11]]), torch.tensor([1, 2])
    torch.testing.assert_close(deeper(tokens, rows), Student.from_draft(start)(tokens, rows))
    last = "model.layers.2.self_attn.q_proj.weight"  # the draft's own layer comes last
    torch.testing.assert_close(
        deeper.tensors()[last], start.weights["model.layers.0.self_attn.q_proj.weight"].float()
    )
    options = DistilOptions(minutes=0.01, learning_rate=5e-3, tokens_per_batch=256)
    distil(deeper, Examples(corpus, labels), options, tmp_path / "state.pt", lambda *_: None)
    assert deeper.tensors()["model.layers.0.mlp.down_proj.weight"].any()
    save_ssm(tmp_path / "deep", deeper.tensors(), chosen, deeper.config, target, str(target), {})
    assert load_ssm(tmp_path / "deep", target).config.layers == 3


def test_the_time_of_a_suspended_run_does_not_count(
    target: Path,
    corpus: list[Continuation],
    labels: list[Labels],
    vocabulary: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(0, 10**6, 3600))  # an hour between two readings
    monkeypatch.setattr(distilling.time, "monotonic", lambda: float(next(clock)))
    steps: list[float] = []
    options = DistilOptions(minutes=4.5 * distilling.LONGEST_STEP_S / 60, tokens_per_batch=256)
    student = make_student(target, vocabulary)
    distil(student, Examples(corpus, labels), options, tmp_path / "s.pt", lambda at, *_: steps.append(at))
    assert len(steps) == 4
