"""Run the blocks of the pages: shell blocks unchanged, Python blocks against a system with a tiny model."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from specinfer.llm import background, sync
from tests.docs.blocks import ROOT, Block, blocks, commands, script
from tests.docs.ours import SERVICES
from tests.docs.test_commands import CODE, SHELL
from tests.support.local import tiny_engine
from tests.support.network.http_service import http_service
from tests.support.oracle import first
from tests.support.system import ScriptedDrafter, ascii_tokenizer, running_system

MODEL = "smollm2-135m"
MESSAGES = [{"role": "user", "content": "hi"}]
ASKED = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4}
BATCH = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": ASKED}


def page(name: str, *languages: str) -> list[Block]:
    """Return the blocks of a page in these languages that state no requirement."""
    chosen = [
        block for block in blocks(ROOT / "docs" / name) if block.language in languages and not block.needs
    ]
    assert chosen
    return chosen


def run_shell(text: str, folder: Path) -> str:
    """Run a script; return its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_python(block: Block, text: str, **given: Any) -> dict[str, Any]:
    """Run a block; return its global variables."""
    names = {"__name__": "__main__", **given}
    exec(compile(text, str(block), "exec"), names)
    return names


def test_certificates_and_keys_of_the_serving_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, certificates, services, keys = shells = page("serving.md", *SHELL)
    assert len(shells) == 5, "a block is new: run it, or say what it needs"
    run_shell(certificates.text, tmp_path)
    monkeypatch.chdir(tmp_path)
    for _, _, module, *flags in commands(services.text):
        settings = SERVICES[module].load(module, [flag for flag in flags if flag != "..."])
        assert settings.model_fields_set
    newest = "$(specinfer keys list --file keys.jsonl | tail -n 1 | cut -f 2)"
    printed = run_shell(keys.text.replace("1a2b3c4d", newest), tmp_path)
    assert printed.count("alice\t") == 1
    assert len((tmp_path / "keys.jsonl").read_text().splitlines()) == 1


OWN, ASKING = [], []
for text_block in page("python.md", *CODE):
    (ASKING if "Client" in text_block.text else OWN).append(text_block)


@pytest.mark.parametrize("block", OWN, ids=str)
def test_decoding_in_this_process(
    block: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(model: str, draft: Any, speculators: Any, options: Any) -> Any:
        assert model == MODEL
        return tiny_engine({"a": ScriptedDrafter(first(2))}), ascii_tokenizer()

    for module in (sync, background):
        monkeypatch.setattr(module, "build_engine", build)
    run_python(block, block.text)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("block", ASKING, ids=str)
async def test_asking_gateways(block: Block, redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        text = block.text.replace("127.0.0.1:50051", system.address)
        await asyncio.to_thread(run_python, block, text)
    assert capsys.readouterr().out.strip()


async def test_the_http_page(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(json.dumps(BATCH) + "\n")
    async with (
        running_system(redis_url, {"a": ScriptedDrafter(first(2))}, eos=0) as system,
        http_service(system.address, served_model_name=MODEL) as http,
    ):
        client = OpenAI(base_url=f"{http.url}/v1", api_key="none", max_retries=0)
        for block in page("http.md", *CODE):
            await asyncio.to_thread(run_python, block, block.text, client=client, messages=MESSAGES)
        printed = ""
        for block in page("http.md", *SHELL):
            text = script(block).replace("http://127.0.0.1:8000", http.url)
            text = text.replace("exact ", "exact --max-tokens 4 ")  # 64 take half a minute
            text = text.replace("examples/", f"{ROOT}/examples/")
            if http.url in text:
                printed += await asyncio.to_thread(run_shell, text, tmp_path)
    assert "data: [DONE]" in printed
    assert "greedy: 12 of 12 answers are the same with speculation" in printed
    assert "seeded: 12 of 12 answers are the same with speculation" in printed
    assert '"custom_id": "1"' in (tmp_path / "answers.jsonl").read_text()
