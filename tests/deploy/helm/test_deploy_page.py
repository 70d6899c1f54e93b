"""The Kubernetes commands and tables of docs/serving.md name existing files and values."""

import re
from typing import Any

import yaml

from specinfer import __version__
from tests.deploy.helm.chart import CHART, FILES, ROOT, render

PAGE = (ROOT / "docs" / "serving.md").read_text().partition("\n## Kubernetes\n")[2]
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()


def test_ten_commands_lead_to_the_first_token() -> None:
    assert 1 < len(COMMANDS) <= 10
    assert "specinfer" in COMMANDS[-1]
    assert "generate" in COMMANDS[-1]


def test_what_commands_name_exists() -> None:
    objects = render()
    text = "\n".join(COMMANDS)
    for path in re.findall(r"\bdeploy/[\w./-]+", text):
        assert (ROOT / path).exists(), path
    for kind, name in re.findall(r"(statefulset|deployment)/([\w-]+)", text):
        assert objects.workload(name).source["kind"].lower() == kind
    created = re.findall(r"create namespace ([\w-]+)", text)
    assert set(re.findall(r" -n ([\w-]+)", text)) == set(created)
    (host, namespace, port), *_ = re.findall(r"--address ([\w-]+)\.([\w-]+):(\d+)", text)
    service = objects.get("Service", host)
    assert (namespace, service["spec"]["ports"][0]["port"]) == (created[0], int(port))
    images = re.findall(r"specinfer-[\w$]+:(\d+\.[\d.]+)", text)
    assert set(images) == {__version__}
    built = set(re.findall(r"for t in ([\w ]+); do docker build", text)[0].split())
    used = {c["image"] for workload in objects.workloads for c in workload.containers}
    assert {f"specinfer-{name}:{__version__}" for name in built} == {
        n for n in used if n.startswith("specinfer")
    }


def test_values_that_the_page_names_exist() -> None:
    rows = re.findall(r"^\| (`[a-z]\w*\..*?) \|", PAGE, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    named += re.findall(r"--set ([\w.]+)=", PAGE)
    named += re.findall(r"`((?:verifier|networkPolicy)\.[\w.]+)`", PAGE)
    assert len(named) > 10
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name in named:
        value: Any = values
        for part in name.split("."):
            assert part in value, name
            value = value[part]


def test_the_table_of_files_is_complete() -> None:
    assert set(re.findall(r"^\| `values-([\w-]+)\.yaml` \|", PAGE, re.MULTILINE)) == set(FILES)
