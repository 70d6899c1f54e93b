"""vLLM 0.32 with our speculators as its proposer, in its own environment (docs/drafters.md)."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.processes import write_float_model
from specinfer.cli.local.processes import Child, free_ports, wait_for_port
from specinfer.hub import DEFAULT_MODEL
from specinfer.text.prompts import read_prompts
from specinfer.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("SPECINFER_TEST_VLLM") or ROOT / "benchmarks/peers/.venvs/vllm/bin/python")
NEW_TOKENS = (8, 32, 16, 32, 12, 24)
"""New tokens by prompt. Requests end at different times, so vLLM moves its last row into the free one."""
PROPOSER = {
    "method": "custom_class",
    "model": "specinfer.integrations.vllm.SpeculatorProposer",
    "num_speculative_tokens": 4,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON.is_file(), reason=f"no vLLM: $SPECINFER_TEST_VLLM, {PYTHON}"),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, Child]]:
    """Address and process of a speculator service with the shipped SSM and n-grams."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "speculator_svc", "--listen", f"127.0.0.1:{port}"]
    command += ["--drafter", "ngram+ssm", "--model", "ssm-smollm2-135m"]
    child = Child("speculator", command, tmp_path / "speculator.log", {})
    try:
        wait_for_port(child, f"127.0.0.1:{port}", 180.0)
        yield f"127.0.0.1:{port}", child
    finally:
        child.terminate()
        child.join(timeout_s=10.0)


def vllm(task: Mapping[str, Any], **environment: str) -> list[dict[str, Any]]:
    """Run vLLM on a task; return its output, one item per round."""
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("vllm_session.py"))],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    times: list[dict[str, Any]] = json.loads(done.stdout)["times"]
    return times


def test_vllm_says_the_same_in_fewer_steps_and_outlives_the_speculators(
    default_model: Path, service: tuple[str, Child]
) -> None:
    model = write_float_model(DEFAULT_MODEL)
    tokenizer = Tokenizer.load(default_model)
    turns = read_prompts(ROOT / "tests" / "data" / "prompts.jsonl")[: len(NEW_TOKENS)]
    prompts = [tokenizer.encode_chat([{"role": "user", "content": turn}]) for turn in turns]
    task = {"model": str(model), "prompts": prompts, "new_tokens": NEW_TOKENS}
    address, child = service
    (plain,) = vllm({**task, "speculative_config": None, "end_process": 0})
    speculative = {**task, "speculative_config": PROPOSER, "end_process": child.pid}
    served, after = vllm(speculative, SPECINFER_VLLM_SPECULATORS=address)

    assert served["outputs"] == plain["outputs"]
    counters = served["vllm"]
    assert counters["accepted"] == served["pool"]["accepted"] > 0.1 * counters["proposed"] > 0
    # every request was drafted for until it ended, though rows moved: a step without drafts is a token alone
    assert counters["accepted"] + counters["rounds"] >= 0.8 * (sum(NEW_TOKENS) - 2 * len(NEW_TOKENS))
    assert served["pool"]["requests"] == len(NEW_TOKENS), "no request was taken for a new one"
    assert served["services"].get("resync", 0) == served["pool"].get("faults", 0) == 0

    assert after["outputs"] == plain["outputs"]
    assert after["services"]["lost"] >= 1
    assert after["pool"].get("faults", 0) == 0
    assert after["vllm"] == counters, "nothing was proposed without the service"
