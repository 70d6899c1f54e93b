"""The commands of docs/models.md for your own model, run with a tiny model and seconds of training."""

import json
import shlex
import sys
from pathlib import Path

import httpx2
import pytest

from specinfer.cli.local.processes import free_ports
from tests.chaos.model_directory import write_model
from tests.chaos.service import Service
from tests.docs.blocks import ROOT, blocks, commands
from tests.docs.test_commands import SHELL
from tests.docs.test_run import run_shell

PAGE = ROOT / "docs" / "models.md"
PROMPTS = [f"prompt {i}: {'abc' * i}" for i in range(12)]


@pytest.mark.thorough
async def test_the_commands_lead_to_a_server_with_a_speculator_of_its_own(tmp_path: Path) -> None:
    write_model(tmp_path / "MODEL")
    lines = [json.dumps({"turns": [text]}) for text in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    shells = [block.text for block in blocks(PAGE) if block.language in SHELL and "MODEL" in block.text]
    typed = [words for text in shells for words in commands(text)]
    check, _, train, (_, *served), bench = typed
    assert bench[1] == "bench"  # a whole system, which other tests start
    run_shell(shlex.join(check), tmp_path)
    run_shell(shlex.join(train).replace("--minutes 60", "--minutes 0.15"), tmp_path)
    (port,) = free_ports(1)
    given = {name: str(tmp_path / name) for name in ("MODEL", "my-speculator")}
    command = [sys.executable, "-m", "specinfer.cli", *(given.get(word, word) for word in served)]
    command += ["--listen", f"127.0.0.1:{port}"]  # started elsewhere than it was trained
    server = Service("server", "server", port, command, tmp_path, {"OMP_NUM_THREADS": "1"})
    server.start()
    try:
        await server.loaded()
        asked = {
            "prompt": PROMPTS[3],
            "max_tokens": 40,
            "temperature": 0,
            "ignore_eos": True,
            "model": "MODEL",
            "speculation": "always",  # a tiny model may be faster without trees
        }
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            reply = (await client.post("/v1/completions", json=asked)).json()
    finally:
        await server.stop()
    assert reply["usage"]["completion_tokens"] == 40
    assert reply["usage"]["speculation"]["speculators"]["ssm"]["drafted"] > 0
