"""Check the Dockerfile with hadolint and the Compose files with Docker Compose (both from pip)."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import GatewaySettings
from http_svc.settings import HttpSettings
from specinfer.cli.local.system import SERVICE_ENVIRONMENT
from specinfer.service.settings import ProcessSettings, ServiceSettings
from speculator_svc.settings import SpeculatorSettings
from verifier_svc.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "deploy" / "docker"
DOCKERFILE = DOCKER / "Dockerfile"
OURS: dict[str, tuple[str, type[ServiceSettings]]] = {
    "gateway": ("SPECINFER_GATEWAY_", GatewaySettings),
    "verifier": ("SPECINFER_VERIFIER_", VerifierSettings),
    "speculator": ("SPECINFER_SPECULATOR_", SpeculatorSettings),
}
SETTINGS: dict[str, tuple[str, type[ProcessSettings]]] = {**OURS, "http": ("SPECINFER_HTTP_", HttpSettings)}
ALL = (*SETTINGS, "models", "redis", "prometheus", "grafana")


def program(name: str) -> str:
    """Return the path of a program that pip installed next to Python; skip the test if it is missing."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(f"{name} is not installed: it comes with the extra `dev` on Linux, x86-64")
    return path


@cache
def composed(*files: str) -> dict[str, Any]:
    """Return the configuration that Docker Compose reads from these files; Docker is not needed."""
    command = [program("docker-compose"), *(part for file in files for part in ("-f", str(DOCKER / file)))]
    environment = {"PATH": os.environ["PATH"], "SPECINFER_KEYS": str(ROOT / "LICENSE")}
    done = subprocess.run(
        [*command, "config", "--format", "json"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    return dict(json.loads(done.stdout))


def services(*files: str) -> dict[str, Any]:
    return dict(composed(*(files or ("compose.yaml",)))["services"])


def test_the_dockerfile_has_no_faults() -> None:
    done = subprocess.run([program("hadolint"), DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_sees_faults() -> None:
    """The negative control."""
    done = subprocess.run(
        [program("hadolint"), "-"], input="FROM debian\n", capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "DL3006" in done.stdout


def test_images_for_gpus_can_start_triton() -> None:
    """Triton compiles a launcher for each kernel, with a C compiler. Other images have none."""
    text = DOCKERFILE.read_text()
    added = {
        stage.split("\n")[0].split(" AS ")[-1]: re.findall(r"\$\{GPU:\+(.*?)\}", stage)
        for stage in text.split("\nFROM ")
    }
    assert {stage: words for stage, words in added.items() if words} == {
        "build-model": [",gpu"],
        "model": ["gcc libc6-dev"],
    }
    assert text.count("\nARG GPU\n") == 2, "in both stages"


def test_kernels_compile_from_the_files_copied_for_them(tmp_path: Path) -> None:
    """The stage copies a part of the source, and its Python has no packages."""
    stage = DOCKERFILE.read_text().split(" AS build\n")[1].split("\nFROM ")[0]
    before, command = stage.split("\nRUN python3 ")[:2]
    copied = [words.split() for words in re.findall(r"^COPY (.*)$", before, re.MULTILINE)]
    assert copied
    for *sources, target in copied:
        for source in sources:
            place = tmp_path / target / (Path(source).name if target.endswith("/") else "")
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place)
            else:
                shutil.copy(ROOT / source, place)
    module = command.split()[1]
    subprocess.run([sys.executable, "-S", "-m", module, "--help"], cwd=tmp_path, env={}, check=True)


def test_images_have_the_environment_of_specinfer_up() -> None:
    text = DOCKERFILE.read_text()
    for name, value in SERVICE_ENVIRONMENT.items():
        assert re.search(rf"^ .*\b{name}={re.escape(value)}( \\)?$", text, re.MULTILINE), name


def test_health_checks_ask_no_proxy() -> None:
    """Docker passes its user's proxy to containers, and urllib would use it even for 127.0.0.1."""
    checks = [line for line in DOCKERFILE.read_text().splitlines() if line.startswith("HEALTHCHECK")]
    assert len(checks) == 5
    for line in checks:
        _, flag, code, *_ = json.loads(line.partition(" CMD ")[2])
        if flag == "-c":
            assert code.startswith("from http.client import ")
            compile(code, "check", "exec")
        else:
            assert (flag, code) == ("-m", "specinfer.service.health")


def test_the_base_is_pinned_to_a_release() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base)


def test_every_source_package_and_nothing_else_goes_into_an_image() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[[line.startswith("#") for line in lines].index(False)] == "*"
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert kept == packages | {"LICENSE", "README.md", "constraints.txt", "pyproject.toml"}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_environment_of_a_service_is_settings_that_it_has(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, settings = SETTINGS[name]
    environment = services()[name]["environment"]
    assert [key for key in environment if not key.startswith(prefix)] == []
    for key in [key for key in os.environ if key.startswith(prefix)]:  # a container has its own alone
        monkeypatch.delenv(key)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    settings.load(name, [])


def test_metrics_are_where_prometheus_looks() -> None:
    ports = {
        name: services()[name]["environment"][f"{prefix}METRICS_PORT"] for name, (prefix, _) in OURS.items()
    }
    assert ports == {"gateway": "9464", "verifier": "9465", "speculator": "9466"}
    for name, port in ports.items():
        stage = re.search(rf"^FROM \w+ AS {name}\n(.*?)(?=^FROM|\Z)", DOCKERFILE.read_text(), re.M | re.S)
        assert stage is not None
        assert port in re.findall(r"^EXPOSE (.*)$", stage[1], re.M)[0].split()


def test_the_composition_is_these_services() -> None:
    assert set(services()) == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_service_is_confined(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert int(service["mem_limit"]) > 0
    assert service["pids_limit"] > 0
    assert service["restart"] == ("no" if name == "models" else "unless-stopped")
    for volume in service.get("volumes", []):
        assert volume["type"] == "volume" or volume["read_only"]
    for port in service.get("ports", []):
        assert port["host_ip"] == "127.0.0.1"


def test_only_the_service_that_pulls_writes_models() -> None:
    mounts = {
        name: volume
        for name, service in services().items()
        for volume in service.get("volumes", [])
        if volume["source"] == "models"
    }
    assert set(mounts) == {*OURS, "models"}
    assert [name for name, volume in mounts.items() if not volume.get("read_only")] == ["models"]
    assert {volume["target"] for volume in mounts.values()} == {"/models"}
    assert "SPECINFER_CACHE=/models" in DOCKERFILE.read_text()


def test_services_wait_until_what_they_need_is_healthy() -> None:
    needs = {
        name: {on: need["condition"] for on, need in service.get("depends_on", {}).items()}
        for name, service in services().items()
    }
    pulled = {"models": "service_completed_successfully"}
    assert needs["verifier"] == needs["speculator"] == pulled
    assert needs["gateway"] == dict.fromkeys(("redis", "speculator", "verifier"), "service_healthy")
    assert needs["http"] == {"gateway": "service_healthy"}
    for name in ("redis", "prometheus", "grafana"):
        assert services()[name]["healthcheck"]["test"]


def test_nothing_outside_reaches_redis_verifier_or_speculator() -> None:
    assert composed("compose.yaml")["networks"]["services"]["internal"] is True
    for name in ("redis", "verifier", "speculator"):
        assert list(services()[name]["networks"]) == ["services"]
        assert "ports" not in services()[name]


def test_redis_keeps_every_write() -> None:
    command = services()["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options == {
        "--appendonly": "yes",
        "--appendfsync": "always",
        "--maxmemory-policy": "noeviction",
    }


@pytest.mark.parametrize("name", ["gateway", "http"])
def test_streams_are_drained_before_their_service_is_killed(name: str) -> None:
    service = services()[name]
    minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(\d+)s", service["stop_grace_period"]).groups()  # type: ignore[union-attr]
    grace = 60 * int(minutes or 0) + int(seconds)
    assert grace > 2 * float(service["environment"][f"SPECINFER_{name.upper()}_DRAIN_SECONDS"])


def test_files_that_are_mounted_exist() -> None:
    sources = [
        Path(volume["source"])
        for service in services().values()
        for volume in service.get("volumes", [])
        if volume["type"] == "bind"
    ]
    assert sources
    assert [source for source in sources if not source.exists()] == []


def test_api_keys_are_an_addition_of_a_secret() -> None:
    gateway = services("compose.yaml", "compose.keys.yaml")["gateway"]
    (secret,) = gateway["secrets"]
    path = gateway["environment"]["SPECINFER_GATEWAY_API_KEYS"]
    assert path == f"/run/secrets/{secret['source']}"
    assert gateway["environment"]["SPECINFER_GATEWAY_REDIS_URL"]
