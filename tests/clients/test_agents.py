"""Coding agents: each writes a file with the real pair, or docs/http.md states what does not work."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from specinfer.cli.demo import PAIR
from specinfer.cli.local.processes import free_ports
from specinfer.hub.resolve import is_pulled
from tests.chaos.service import Service
from tests.clients.environments import environment, node_environment

ROOT = Path(__file__).resolve().parents[2]
MODEL = PAIR[0]
CONTEXT = 32768
TASK = 'Write a file named hello.py whose only line is print("hello"). Use your tool to write the file.'
TIMEOUT_S = 1200
"""Seconds of one task: agents' prompts have up to ten thousand tokens."""


class Agent(NamedTuple):
    """Package, configuration and call of an agent."""

    package: str
    command: Callable[[str], list[str]]
    """Program and arguments, by the server's address."""
    variables: Callable[[str], Mapping[str, str]] = lambda url: {}
    files: Callable[[str], Mapping[str, str]] = lambda url: {}
    """Texts of configuration files by path below the home directory."""
    of_python: bool = False


def continue_config(url: str) -> str:
    model = {"name": "coder", "provider": "openai", "model": MODEL, "apiBase": f"{url}/v1", "apiKey": "x"}
    able = {"roles": ["chat", "edit", "apply"], "capabilities": ["tool_use"]}
    return json.dumps({"name": "local", "version": "0.0.1", "schema": "v1", "models": [model | able]})


AGENTS = {
    "aider": Agent(
        "aider-chat==0.86.2",
        lambda url: [
            *(
                "aider",
                "--model",
                f"openai/{MODEL}",
                "--openai-api-base",
                f"{url}/v1",
                "--openai-api-key",
                "x",
            ),
            *(
                "--no-git",
                "--yes-always",
                "--no-show-model-warnings",
                "--no-check-update",
                "--map-tokens",
                "0",
            ),
            *("--analytics-disable", "--edit-format", "whole", "--message", TASK, "hello.py"),
        ],
        of_python=True,
    ),
    "claude": Agent(
        "@anthropic-ai/claude-code@2.1.197",
        lambda url: [
            *("claude", "-p", TASK, "--tools", "Write", "--allowedTools", "Write"),
            *("--system-prompt", "You are a coding agent. Paths of files are absolute; you work in $PWD."),
        ],
        lambda url: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "x",
            **dict.fromkeys(("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"), MODEL),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1024",
            "API_TIMEOUT_MS": str(TIMEOUT_S * 1000),
        },
    ),
    "cn": Agent(
        "@continuedev/cli@1.5.47",
        lambda url: ["cn", "--config", "$HOME/config.yaml", "--auto", "-p", TASK],
        lambda url: {"CONTINUE_TELEMETRY_ENABLED": "0"},
        lambda url: {"config.yaml": continue_config(url)},
    ),
}
"""Agents that do the task, by the name of their program."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (port,), folder = free_ports(1), tmp_path_factory.mktemp("pair")
    options = ["--model", MODEL, "--draft", PAIR[1], "--kv-tokens", str(CONTEXT)]
    command = [sys.executable, "-m", "all_in_one", "--listen", f"127.0.0.1:{port}", *options]
    service = Service("server", "server", port, command, folder, {})
    service.start()
    asyncio.run(service.loaded())
    yield f"http://127.0.0.1:{port}"
    asyncio.run(service.stop())


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.native
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.skipif(not all(map(is_pulled, PAIR)), reason="`make demo` pulls the pair")
@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_writes_a_file(name: str, url: str, tmp_path: Path) -> None:
    agent = AGENTS[name]
    install = environment if agent.of_python else node_environment
    programs, home, work = install(f"agent-{name}", agent.package), tmp_path / "home", tmp_path / "work"
    work.mkdir()
    for path, text in agent.files(url).items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    program, *arguments = [
        part.replace("$HOME", str(home)).replace("$PWD", str(work)) for part in agent.command(url)
    ]
    home.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        programs / program,
        *arguments,
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **agent.variables(url)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert (work / "hello.py").is_file(), printed.decode()[-2000:]
    assert re.search(r"print\(.hello.\)", (work / "hello.py").read_text())


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.skipif(not all(map(is_pulled, PAIR)), reason="`make demo` pulls the pair")
def test_the_pair_fills_a_gap(url: str) -> None:
    gap = {
        "input_prefix": "def fib(n):\n    if n < 2:\n        return n\n    ",
        "input_suffix": "\n\nprint(fib(10))\n",
        "n_predict": 40,
        "temperature": 0,
    }
    answer = httpx2.post(f"{url}/infill", json=gap, timeout=TIMEOUT_S).json()
    assert (answer["content"].replace(" ", ""), answer["stop_type"]) == ("returnfib(n-1)+fib(n-2)", "eos")
    body = {"model": MODEL, "prompt": gap["input_prefix"], "suffix": gap["input_suffix"], "max_tokens": 40}
    same = httpx2.post(f"{url}/v1/completions", json=body | {"temperature": 0}, timeout=TIMEOUT_S).json()
    assert same["choices"][0]["text"] == answer["content"]


def test_the_page_has_the_versions_that_are_tried() -> None:
    text = (ROOT / "docs" / "http.md").read_text().partition("\n### Agents")[2].partition("\n## ")[0]
    works = re.findall(r"^\| \w[\w ]*, `(\S+)` (\S+) \|.*\| yes", text, re.MULTILINE)
    tried = [agent.package.replace("==", "@").rpartition("@") for agent in AGENTS.values()]
    assert works == [(name, version) for name, _, version in tried]
