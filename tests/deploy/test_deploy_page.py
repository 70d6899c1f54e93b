"""The commands of docs/deploy.md for Kubernetes name what is there."""

import re
import shutil
import subprocess
from pathlib import Path

from specinfer import __version__
from tests.deploy.kustomize import KUBERNETES, ROOT, render, render_overlay

PAGE = (ROOT / "docs" / "deploy.md").read_text().partition("\n## Kubernetes\n")[2]
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()


def test_ten_commands_lead_to_the_first_token() -> None:
    assert 1 < len(COMMANDS) <= 10
    assert "specinfer" in COMMANDS[-1]
    assert "generate" in COMMANDS[-1]


def test_what_commands_name_exists() -> None:
    objects = render_overlay("cpu")
    text = "\n".join(COMMANDS)
    for path in re.findall(r"\bdeploy/[\w./-]+", text):
        assert (ROOT / path).exists(), path
    for kind, name in re.findall(r"(statefulset|deployment)/([\w-]+)", text):
        assert objects.workload(name).source["kind"].lower() == kind
    for namespace in re.findall(r" -n ([\w-]+)", text):
        objects.get("Namespace", namespace)
    (host, namespace, port), *_ = re.findall(r"--address ([\w-]+)\.([\w-]+):(\d+)", text)
    service = objects.get("Service", host)
    assert (service["metadata"]["namespace"], service["spec"]["ports"][0]["port"]) == (namespace, int(port))
    images = re.findall(r"specinfer-[\w$]+:(\d+\.[\d.]+)", text)
    assert set(images) == {__version__}


def test_the_password_command_writes_what_all_sides_read(tmp_path: Path) -> None:
    (command,) = (command for command in COMMANDS if "redis-secret.env" in command)
    shutil.copytree(KUBERNETES, tmp_path / "deploy" / "k8s")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=30)
    objects = render(tmp_path / "deploy" / "k8s" / "overlays" / "cpu")
    (redis,) = objects.behind("specinfer-redis")
    password = objects.environment(redis.pod, redis.pod["containers"][0])["REDISCLI_AUTH"]
    assert re.fullmatch(r"[0-9a-f]{48}", password)
    gateway = objects.workload("specinfer-gateway")
    url = objects.environment(gateway.pod, gateway.pod["containers"][0])["SPECINFER_GATEWAY_REDIS_URL"]
    assert url == f"redis://:{password}@specinfer-redis:6379/0"
    files = [objects.content(volume) or {} for volume in redis.pod["volumes"]]
    assert {"auth.conf": f"requirepass {password}"} in files


def test_the_table_of_folders_is_complete() -> None:
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`([\w/-]+)`", row)
    }
    folders = {"base"} | {
        f"{kind}/{path.name}" for kind in ("overlays", "components") for path in (KUBERNETES / kind).iterdir()
    }
    assert named == folders
