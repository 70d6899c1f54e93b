"""The `specinfer` command on the default model: each test starts and ends a whole local system."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from specinfer.cli.local import system as local
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.system import LocalSystem
from tests.support.background import services_of
from tests.support.preloaded import ForkedChild, run_preloaded
from tests.support.tiny_models import tiny_transformers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = "tests/data/prompts.jsonl"


@pytest.fixture(scope="module")
def system(default_model: Path, redis_server: str) -> Iterator[LocalSystem]:
    """One system in float32, for the tests that only call it."""
    os.environ["REDIS_URL"] = redis_server
    os.environ["SPECINFER_GATEWAY_ADAPTIVE"] = "false"  # steps must not depend on how fast the machine is
    options = LocalOptions(dtype="float32", gateway={"max-batch": "4"})
    with patch.object(local, "Child", ForkedChild), LocalSystem(options) as system:
        yield system
    del os.environ["REDIS_URL"], os.environ["SPECINFER_GATEWAY_ADAPTIVE"]


def specinfer(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_preloaded("specinfer.cli", *arguments, timeout_s=300, **environment)


def test_generate_streams_text(system: LocalSystem) -> None:
    done = specinfer("generate", "What is the capital of France?", "--address", system.address)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "tokens/step" in done.stderr
    assert "ssm won " in done.stderr


def test_generate_json_is_the_same_with_and_without_speculation(system: LocalSystem) -> None:
    def run(speculation: str) -> dict[str, object]:
        flags = [
            "--max-new-tokens",
            "48",
            "--speculation",
            speculation,
            "--json",
            "--address",
            system.address,
        ]
        done = specinfer("generate", "Count from one to ten, then from one to ten again.", *flags)
        assert done.returncode == 0, done.stderr
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    off, sequence, tree = run("off"), run("sequence"), run("tree")
    assert off["token_ids"] == sequence["token_ids"] == tree["token_ids"]
    assert (off["steps"], off["drafted"]) == (off["new_tokens"], 0)
    assert tree["steps"] < off["steps"]  # type: ignore[operator]
    speculators = set(tree["speculators"])  # type: ignore[call-overload]
    assert {"ssm"} < speculators <= {"ngram", "ssm", "suffix"}, (
        "a text that repeats itself: one by look-up, too"
    )


@pytest.mark.parametrize("temperature", [pytest.param("0.4", marks=pytest.mark.thorough), "1.0"])
def test_a_seed_gives_the_same_text_with_and_without_speculation(
    temperature: str, system: LocalSystem
) -> None:
    """Drafts are points unless draws are requested."""
    flags = ["--temperature", temperature, "--seed", "5", "--max-new-tokens", "24", "--json"]
    off, sequence, tree, other = (
        json.loads(
            specinfer("generate", "Tell me a story.", *flags, *more, "--address", system.address).stdout
        )
        for more in (
            ["--speculation", "off"],
            ["--speculation", "sequence"],
            ["--speculation", "tree"],
            ["--seed", "6"],
        )
    )
    assert off["token_ids"] == sequence["token_ids"] == tree["token_ids"] != other["token_ids"]
    assert off["seed"] == 5
    assert tree["steps"] < off["steps"]


def test_bench_writes_what_it_promises(system: LocalSystem, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    flags = ["--limit", "3", "--batch", "1,3", "--max-new-tokens", "12", "--json", str(out)]
    done = specinfer("bench", "--prompts", PROMPTS, *flags, "--address", system.address)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert [(r["mode"], r["batch"]) for r in result["runs"]] == [
        (mode, batch) for batch in (1, 3) for mode in ("incremental", "sequence", "tree")
    ]
    for run in result["runs"]:
        assert (run["prompts"], run["new_tokens"]) == (3, 36)
        assert run["identical_to_incremental"] is True
        assert run["tokens_per_second"] == pytest.approx(36 / run["seconds"])
        assert run["turns"] == (3 if run["batch"] == 1 else 1)
        assert (run["tokens_per_second_error"] is None) == (run["batch"] == 3)
        assert run["speedup"] > 0
        assert 0 < run["ttft_ms"]["p50"] <= run["ttft_ms"]["p99"]
        assert run["tpot_ms"]["p50"] > 0
        if run["mode"] == "incremental":
            assert (run["steps"], run["acceptance_length"]) == (36, 1.0)
        else:
            assert run["acceptance_length"] == pytest.approx(36 / run["steps"], rel=0.35)
    assert result["about"]["commit"]
    assert "speedup" in done.stdout


@pytest.mark.native
@pytest.mark.thorough
@pytest.mark.parametrize("family", ["opt", "gpt_neox"])
def test_a_base_model_of_another_family_is_served_losslessly(
    family: str, default_model: Path, tmp_path: Path
) -> None:
    """The model is random, in bfloat16; n-grams draft for it."""
    directory, out = tmp_path / family, tmp_path / "bench.json"
    tiny_transformers(family, vocab_size=49152, head_dim=16).save_pretrained(directory)
    shutil.copy(default_model / "tokenizer.json", directory)
    flags = ["--limit", "2", "--max-new-tokens", "24", "--json", str(out), "--speculator", "ngram"]
    done = specinfer("bench", "--raw", "--prompts", PROMPTS, "--model", str(directory), *flags)
    assert done.returncode == 0, done.stderr
    runs = json.loads(out.read_text())["runs"]
    assert [run["identical_to_incremental"] for run in runs] == [True, True, True]
    assert sum(run["speculators"].get("ngram", {}).get("drafted", 0) for run in runs) > 0


def test_bad_input_at_the_gateway_is_one_line(system: LocalSystem) -> None:
    done = specinfer("generate", "hi", "--max-new-tokens", "-1", "--address", system.address)
    assert done.returncode == 2
    assert done.stderr == "specinfer: error: --max-new-tokens = -1: must be positive (INVALID_ARGUMENT)\n"


def test_status_shows_the_system(system: LocalSystem) -> None:
    done = specinfer("status", "--address", system.address)
    assert done.returncode == 0, done.stderr
    for word in (
        "smollm2-135m",
        "verifier",
        "latest step",
        "ngram",
        "ssm",
        "ready",
        "float32",
        "executor",
        "0 failed",
    ):
        assert word in done.stdout


@pytest.mark.thorough
def test_generate_local_leaves_nothing_behind(default_model: Path, tmp_path: Path) -> None:
    flags = ["--local", "--weights", "auto", "--json", "--max-new-tokens", "24"]
    done = specinfer("generate", "Count from one to ten.", *flags, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["new_tokens"] > 0
    assert answer["speculators"]["ssm"]["drafted"] > 0
    assert services_of(tmp_path) == set()
