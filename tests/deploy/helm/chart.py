"""Render deploy/helm/specinfer with Helm's own library, in this process."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

from tests.deploy.helm.rendered import Object, Rendered

ROOT = Path(__file__).resolve().parents[3]
HELM = ROOT / "deploy" / "helm"
CHART = HELM / "specinfer"
FILES = sorted(path.stem.removeprefix("values-") for path in HELM.glob("values-*.yaml"))
PASSWORD = "0123456789abcdef"
"""Redis' password, for which the chart has no default."""
HOOK = "helm.sh/hook"


@cache
def chart() -> helm_python.Chart:
    """Return the chart, loaded from a copy of its folder alone."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(CHART, Path(folder) / "specinfer", symlinks=True)
        return helm_python.Chart.load(copy)


def render(
    files: Sequence[str] = (), values: Mapping[str, Any] | None = None, release: str = "specinfer"
) -> Rendered:
    """Return what `helm install RELEASE deploy/helm/specinfer -f FILE...` would send to the namespace `specinfer`."""
    return Rendered([row for row in _all(files, values, release) if not _is_hook(row)])


def pod_of_helm_test(values: Mapping[str, Any] | None = None) -> Object:
    (pod,) = (row for row in _all((), values, "specinfer") if _is_hook(row))
    return pod


def _all(files: Sequence[str], values: Mapping[str, Any] | None, release: str) -> Iterator[Object]:
    given: Object = {"redis": {"password": PASSWORD}}
    for name in files:
        given = merged(given, yaml.safe_load((HELM / f"values-{name}.yaml").read_text()))
    texts = chart().render(merged(given, values or {}), name=release, namespace="specinfer")
    for path, text in sorted(texts.items()):
        if path.endswith(".yaml"):
            yield from (row for row in yaml.load_all(text, yaml.CSafeLoader) if row)


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> Object:
    """Merge values like Helm: maps are merged, otherwise the later value wins."""
    result = dict(values)
    for name, value in more.items():
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = merged(result[name], value) if both else value
    return result


def _is_hook(row: Object) -> bool:
    return HOOK in row["metadata"].get("annotations", {})
