"""`LLM` divided over two processes gives the tokens of one process.

It runs in a separate process, as a process can have only one group of ranks.
"""

import json
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from specinfer import LLM, SamplingParams
from specinfer.errors import SettingError
from specinfer.verification import pass_costs
from tests.chaos.model_directory import write_model
from tests.support.preloaded import FORK_SERVER


def answers(model: str, tensor: int) -> str:
    """Return the tokens of two requests as JSON."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    options: Any = {"dtype": "float32", "executor": "torch", "kv_tokens": 2048}
    with LLM(model, tensor_parallel_size=tensor, speculators=["ngram"], **options) as llm:
        outputs = llm.generate([[5, 6, 7, 5, 6], [9, 9, 9]], params, use_tqdm=False)
    return json.dumps([output.outputs[0].token_ids for output in outputs])


def test_two_processes_give_the_tokens_of_one(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model", vocab_size=98))
    receiver, sender = FORK_SERVER.Pipe(duplex=False)
    process = FORK_SERVER.Process(target=answer_shared, args=(model, sender))
    process.start()
    process.join(200)
    assert process.exitcode == 0
    assert receiver.poll()
    assert receiver.recv() == answers(model, 1)


def answer_shared(model: str, sender: Connection) -> None:
    """Send the answers of the divided model; runs in a separate process."""
    pass_costs._AGAIN = 0  # the test does not depend on pass times
    sender.send(answers(model, 2))


def test_a_model_that_cannot_be_divided_so_is_refused(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model", vocab_size=98))
    with pytest.raises(SettingError, match="tensor_parallel = 3"):
        LLM(model, tensor_parallel_size=3, speculators="off")


@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_positive(value: int) -> None:
    with pytest.raises(SettingError, match="tensor_parallel_size"):
        LLM("no such model", tensor_parallel_size=value)
