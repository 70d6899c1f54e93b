"""Texts stay the target's, whatever of it drafts."""

from pathlib import Path

import numpy as np
import torch

from specinfer.drafters import Drafter, DrafterOptions, make_drafter
from speculator_svc.training.corpus import Continuation, write_continuations
from speculator_svc.training.pruning.prune import prune
from tests.support.merging import assert_all_are_accepted
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import tiny_transformers


async def test_pruned_models_draft_and_texts_stay_the_targets(redis_url: str, tmp_path: Path) -> None:
    """One that lacks a layer and one that lacks neurons, for the whole target."""
    target, lines, rng = tmp_path / "target", tmp_path / "corpus.jsonl", np.random.default_rng(0)
    tiny_transformers("llama").to(torch.bfloat16).save_pretrained(target)
    ascii_tokenizer()._fast.save(str(target / "tokenizer.json"))
    items = [Continuation(tuple(rng.integers(3, 97, 5).tolist()), (i, 4, 5, 6)) for i in range(3, 30)]
    write_continuations(lines, ((str(i), item) for i, item in enumerate(items)))

    def pruned(name: str, layers: int, neurons: int) -> Drafter:
        out = tmp_path / name
        prune([lines], out, model=str(target), layers=layers, neurons=neurons, device="cpu")
        return make_drafter("ssm", DrafterOptions(model=str(out), dtype="float32", kv_tokens=4096))

    drafters = {"layers": pruned("layers", 2, 0), "neurons": pruned("neurons", 0, 48)}
    await assert_all_are_accepted(redis_url, drafters)
