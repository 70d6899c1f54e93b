"""Read the metrics of a registry or of an endpoint."""

from collections.abc import Mapping
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    @classmethod
    def of(cls, registry: CollectorRegistry) -> "Scrape":
        return cls(generate_latest(registry).decode())

    @classmethod
    def at(cls, address: str) -> "Scrape":
        """Scrape the endpoint at host:port."""
        with urlopen(f"http://{address}/metrics") as answer:
            return cls(answer.read().decode())

    def value(self, name: str, **labels: str) -> float | None:
        """Return a sample, by its name without the prefix `specinfer_`; None if it is missing."""
        return self._samples.get((f"specinfer_{name}", frozenset(labels.items())))

    def by(self, name: str, label: str) -> Mapping[str, float]:
        """Return the non-zero samples of a metric by one label, summed over the other labels."""
        values: dict[str, float] = {}
        for (sample, labels), value in self._samples.items():
            if sample == f"specinfer_{name}" and value:
                values[dict(labels)[label]] = values.get(dict(labels)[label], 0.0) + value
        return values

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self._samples}
