"""Every command in the README's console blocks is executed, in order; the rest of its claims are checked."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from speculator_svc.settings import SpeculatorSettings
from verifier_svc.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
SETTINGS = {
    "verifier_svc": VerifierSettings,
    "speculator_svc": SpeculatorSettings,
    "gateway": GatewaySettings,
}


def console_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_two_commands_come_first() -> None:
    assert console_commands()[:2] == ["make demo", "make test"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_readme_commands(tmp_path: Path) -> None:
    background: list[subprocess.Popen[bytes]] = []
    try:
        for command in console_commands():
            command = command.replace("bench.json", str(tmp_path / "bench.json"))
            if command == "make test":  # this very run
                command = "make --dry-run test"
            if command.endswith(" &"):
                background.append(subprocess.Popen(command.removesuffix(" &").split(), cwd=ROOT))
                _wait_for_status(background[0])
                continue
            done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=600)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            if command == "make demo":
                for word in ("incremental", "sequence", "tree", "tok/s", "tok/step", "ngram won"):
                    assert word in done.stderr
    finally:
        for process in background:
            process.terminate()
            process.wait(30)
    assert (tmp_path / "bench.json").is_file()


def _wait_for_status(process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while subprocess.run([".venv/bin/specinfer", "status"], capture_output=True, cwd=ROOT).returncode:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_flags_in_the_deployment_example_exist() -> None:
    (block,) = [b for b in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "-m verifier_svc" in b]
    lines = block.replace("\\\n", " ").strip().splitlines()
    assert len(lines) == 4
    for line in lines:
        module = line.split()[2]
        for flag in re.findall(r"--([\w-]+)", line):
            assert flag.replace("-", "_") in SETTINGS[module].model_fields, f"{module} has no --{flag}"


def test_flags_in_the_training_example_exist() -> None:
    (block,) = [b for b in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "specinfer train" in b]
    for line in block.strip().splitlines():
        command = [word for word in line.split()[1:3] if not word.startswith("-")]
        done = subprocess.run(
            [Path(sys.executable).with_name("specinfer"), *command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        for flag in re.findall(r"--[\w-]+", line):
            assert flag in done.stdout, f"{' '.join(command)} has no {flag}"


def test_linked_files_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
