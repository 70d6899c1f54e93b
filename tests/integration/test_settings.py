"""A bad setting is one line that names key and value, and exit code 2; so at the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


BAD_SETTINGS = [
    (["verifier_svc", "--dtype", "float8"], "dtype = 'float8': must be one of float32"),
    (["verifier_svc", "--model", "/no/such/model"], "model = '/no/such/model': no such directory"),
    (["verifier_svc", "--acceptance", "hope"], "acceptance = 'hope': must be one of greedy"),
    (["verifier_svc", "--max-nodes", "0"], "max_nodes = '0'"),
    (["verifier_svc", "--unheard-of", "1"], "--unheard-of"),
    (["speculator_svc", "--drafter", "crystal"], "drafter = 'crystal': must be one of ssm, ngram"),
    (["speculator_svc", "--ngram-min", "9"], "ngram_min = 9"),
    (["gateway", "--tree-nodes", "many"], "tree_nodes = 'many'"),
    (["gateway", "--log-level", "loud"], "log_level = 'loud'"),
]


@pytest.mark.parametrize(("command", "message"), BAD_SETTINGS, ids=[m[:30] for _, m in BAD_SETTINGS])
def test_bad_settings(command: list[str], message: str) -> None:
    done = run(*command)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_unknown_environment_variable() -> None:
    done = run("gateway", SPECINFER_GATEWAY_TREE_NODE="3")
    assert done.returncode == 2
    assert "SPECINFER_GATEWAY_TREE_NODE = '3': unknown setting" in done.stderr


def test_environment_variables_are_read() -> None:
    done = run("speculator_svc", SPECINFER_SPECULATOR_DRAFTER="crystal")
    assert "drafter = 'crystal'" in done.stderr


CLI = "specinfer.cli"
BAD_COMMANDS = [
    (["generate", "hi", "--temperature", "warm"], 2, "'warm'"),
    (["generate", "hi", "--speculation", "yes"], 2, "'yes'"),
    (["generate", "hi", "--seed", "-4"], 2, "seed = -4"),
    (["generate"], 2, "Missing argument"),
    (["generate", "hi", "--local", "--model", "/no/such"], 2, "model = '/no/such'"),
    (["bench", "--prompts", "/no/such.jsonl"], 2, "prompts = '/no/such.jsonl'"),
    (["bench", "--prompts", "Makefile"], 2, "needs `turns: [text]`"),
    (["bench", "--prompts", "tests/data/prompts.jsonl", "--modes", "fast"], 2, "modes = 'fast'"),
    (["bench", "--prompts", "tests/data/prompts.jsonl", "--batch", "0"], 2, "batch = '0'"),
    (["bench", "--prompts", "tests/data/prompts.jsonl", "--limit", "0"], 2, "limit = 0"),
    (["models", "pull", "gpt-9"], 2, "model = 'gpt-9': not in the registry"),
    (["sing"], 2, "sing"),
    (["status", "--address", "127.0.0.1:9"], 1, "gateway at 127.0.0.1:9"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD_COMMANDS, ids=[m for *_, m in BAD_COMMANDS])
def test_bad_commands(arguments: list[str], code: int, message: str) -> None:
    done = run(CLI, *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("module", ["gateway", "verifier_svc", "speculator_svc", CLI])
def test_help(module: str) -> None:
    done = run(module, "--help")
    assert done.returncode == 0
    assert "--" in done.stdout


def test_models_list() -> None:
    done = run(CLI, "models", "list")
    assert done.stdout.startswith("smollm2-135m\t")
    assert "Apache-2.0" in done.stdout
