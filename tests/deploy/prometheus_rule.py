"""Writes the PrometheusRule of deploy/k8s: `python -m tests.deploy.prometheus_rule`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules"
TARGET = ROOT / "deploy" / "k8s" / "components" / "monitoring" / "prometheus-rule.yaml"
_HEAD = """\
# Written by `python -m tests.deploy.prometheus_rule` from deploy/prometheus/rules: change those.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: specinfer
  namespace: specinfer
spec:
  groups:
"""


def prometheus_rule() -> str:
    """The object, with the groups as they are written, comments included."""
    return _HEAD + "".join(_groups(path) for path in sorted(RULES.glob("*.yml")))


def _groups(path: Path) -> str:
    """Return what follows `groups:`, as deep as the object wants it."""
    _, _, groups = path.read_text().partition("\ngroups:\n")
    return "".join(f"  {line}\n" if line else "\n" for line in groups.rstrip("\n").split("\n"))


if __name__ == "__main__":
    TARGET.write_text(prometheus_rule())
