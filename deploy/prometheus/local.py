"""Adapt the committed configuration to other addresses, for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(__file__).parent


def local_configuration(targets: Mapping[str, Sequence[str]], interval: str = "1s") -> dict[str, Any]:
    """Return prometheus.yml with `targets` by job, scraped every `interval`.

    Jobs without targets are left out.

    Raises:
        KeyError: naming a job that the configuration lacks.
    """
    configuration: dict[str, Any] = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    configuration["rule_files"] = [str(DIRECTORY / path) for path in configuration["rule_files"]]
    jobs = {job["job_name"]: job for job in configuration["scrape_configs"]}
    for name, addresses in targets.items():
        del jobs[name]["dns_sd_configs"]
        jobs[name]["static_configs"] = [{"targets": list(addresses)}]
    configuration["scrape_configs"] = [jobs[name] for name in targets]
    return configuration


def command(configuration: Path, data: Path, port: int) -> list[str]:
    """Return the command line of a Prometheus on loopback."""
    return [
        "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
