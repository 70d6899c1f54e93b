"""The committed configuration for services at other addresses, such as those of tests on loopback."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(__file__).parent


def local_configuration(targets: Mapping[str, Sequence[str]], interval: str = "1s") -> dict[str, Any]:
    """What prometheus.yml says, with `targets` by job instead of names, and scraped every `interval`.

    Raises:
        KeyError: if a job has no targets.
    """
    configuration: dict[str, Any] = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    configuration["rule_files"] = [str(DIRECTORY / path) for path in configuration["rule_files"]]
    for job in configuration["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
    return configuration


def command(configuration: Path, data: Path, port: int) -> list[str]:
    """The command line of a Prometheus on loopback."""
    return [
        "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
