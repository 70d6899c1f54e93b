"""Greedy texts of a GGUF file equal those of llama.cpp, except for ties.

$SPECINFER_LLAMA_PYTHON is a Python with llama-cpp-python; $SPECINFER_LLAMA_MODEL is a GGUF file, by default the default
model's.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.gguf_weights import GgufWeights

PYTHON, MODEL = (os.environ.get(f"SPECINFER_LLAMA_{name}") for name in ("PYTHON", "MODEL"))
PROGRAM = Path(__file__).parent / "programs" / "llama_greedy.py"
TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "def quicksort(numbers):\n",
    "Once upon a time, in a village by the sea,",
    "#include <stdio.h>\n\nint main(void) {",
    "1, 1, 2, 3, 5, 8, 13,",
    "Explain in one paragraph why the sky is blue.",
)
TIE = 0.4
"""Maximum difference of two logits that count as tied: keys and values are rounded differently, here to bfloat16."""


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.timeout(900)
@pytest.mark.skipif(not PYTHON, reason="$SPECINFER_LLAMA_PYTHON names no Python with llama-cpp-python")
def test_greedy_texts_are_those_of_llama_cpp(request: pytest.FixtureRequest) -> None:
    """Each of llama.cpp's tokens has the highest logit here, or is tied with it; most have the highest."""
    assert PYTHON
    path = Path(MODEL) if MODEL else next(request.getfixturevalue("default_model").glob("*.gguf"))
    done = subprocess.run(
        [PYTHON, str(PROGRAM), str(path), str(TOKENS)],
        input=json.dumps(PROMPTS),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    weights = GgufWeights(path)
    options = RunnerOptions(kv_tokens=2048, executor="native", dtype="bfloat16")
    runner = ModelRunner.build(from_transformers(weights.config()), weights, options)
    gaps = []
    for row in json.loads(done.stdout):
        prompt, text = row["prompt"], torch.tensor(row["text"])
        chain = Segment(runner.open(), prompt, row["text"][:-1], range(-1, TOKENS - 2), want_last=True)
        (logits,) = runner.forward([chain])
        gaps.append(logits.amax(-1) - logits.gather(1, text[:, None])[:, 0])
        runner.cache.release(chain.sequence)
    assert torch.stack(gaps).max() < TIE, gaps
    assert (torch.stack(gaps) == 0).float().mean() > 0.97
