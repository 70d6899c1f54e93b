"""Checkpoints of the `speculators` library give the library's own logits and greedy drafts."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry
from specinfer.model.drafting import expansion, levels
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits
from tests.clients.environments import environment
from tests.support.models.saved_model import save_target
from tests.support.tiny_models import tiny_transformers

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "programs" / "reference.py"
LIBRARY = ("speculators==0.9.0", "hs-connectors==0.9.0")
"""Packages, installed without their dependencies (CUDA builds of torch, servers)."""
NEEDED = (
    "transformers<=5.19.0",
    "datasets<=5.1.0",
    "safetensors",
    "pydantic-settings",
    "loguru",
    "typer",
    "openai",
)
CASES = (
    *("eagle", "dflash", "dflash-anchor", "peagle", "peagle-normed", "mtp"),
    *(f"dspark-{head}{which}" for head in ("vanilla", "gated", "rnn") for which in ("", "-masks")),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of checkpoints and of the library's outputs."""
    torch_version = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch_version
    programs = environment("speculators", torch_version[0], *NEEDED, alone=LIBRARY)
    directory = tmp_path_factory.mktemp("published")
    save_target(directory / "target", tiny_transformers("qwen3"))
    command = [str(programs / "python"), str(PROGRAM), str(directory / "target"), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_says_what_it_says_in_the_library(
    case: str, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context arrives in two steps, so that the second reads rows of the first from the cache."""
    expected = load_file(made / f"{case}.expected")
    seen: list[torch.Tensor] = []
    for module in (levels, expansion):
        real = module.candidates

        def spy(task, rows, *others, real=real):  # type: ignore[no-untyped-def]
            seen.append(rows[0])
            return real(task, rows, *others)

        monkeypatch.setattr(module, "candidates", spy)
    options = DrafterOptions(model=str(made / case), dtype="float32", kv_tokens=256)
    engine = SpeculatorEngine([make_drafter(case.partition("-")[0], options)])
    context, states = expected["context"].tolist(), expected["states"]
    chain: list[int] = []
    for start, stop in ((0, 7), (7, len(context))):
        first, last = max(start - 1, 0), stop - 1
        limits = TreeLimits(8, 8, 1)
        seen.clear()
        (outcome,) = engine.draft(
            [
                DraftEntry(
                    "r",
                    start,
                    context[start:stop],
                    limits,
                    GREEDY,
                    features=states[first:last].view(torch.int16).numpy().tobytes(),
                    features_start=first,
                )
            ]
        )
        ((_, tree),) = outcome.drafts
        assert isinstance(tree, TokenTree)
        chain = tree.token_ids[1:].tolist()
    wanted = expected["chain"].tolist()
    assert chain[: len(wanted)] == wanted
    assert len(set(wanted)) > 1, "a draft that says one thing only would prove nothing"
    torch.testing.assert_close(torch.stack(seen[: len(wanted)]), expected["logits"], atol=1e-4, rtol=1e-4)
