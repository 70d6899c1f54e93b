"""`LLM` shared by two processes: the same tokens, and nothing is left behind. In a process of its own: a group is one
per process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.model_directory import write_model

SCRIPT = """
import json, sys
from specinfer import LLM, SamplingParams
from specinfer.errors import SettingError
model, tensor = sys.argv[1], int(sys.argv[2])
options = {"speculators": ["ngram"], "dtype": "float32", "executor": "torch", "weights": "converted", "kv_tokens": 2048}
params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
with LLM(model, tensor_parallel_size=tensor, **options) as llm:
    found = [o.outputs[0].token_ids for o in llm.generate([[5, 6, 7, 5, 6], [9, 9, 9]], params, use_tqdm=False)]
print(json.dumps(found))
"""


def run(model: Path, tensor: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, str(model), str(tensor)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_two_processes_give_the_tokens_of_one(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", vocab_size=98)
    one, two = run(model, 1), run(model, 2)
    assert two.returncode == 0, two.stderr[-2000:]
    assert json.loads(two.stdout) == json.loads(one.stdout)


def test_a_model_that_cannot_be_divided_so_is_refused(tmp_path: Path) -> None:
    refused = run(write_model(tmp_path / "model", vocab_size=98), 3)
    assert refused.returncode != 0
    assert "tensor_parallel = 3" in refused.stderr


@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_positive(value: int) -> None:
    from specinfer.errors import SettingError
    from specinfer.llm import LLM

    with pytest.raises(SettingError, match="tensor_parallel_size"):
        LLM("no such model", tensor_parallel_size=value)
