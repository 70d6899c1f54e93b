"""Build common PromQL expressions of dashboards.

`$instance`, `$speculator` and `$__rate_interval` are variables of Grafana. `only` are label matchers that are
added to those of the instance, `by` the labels whose values become separate lines.
"""

from grafana_foundation_sdk.builders.prometheus import Dataquery

from deploy.grafana.board import line

INSTANCE = 'instance=~"$instance"'
SPECULATOR = 'speculator=~"$speculator"'
_WINDOW = "[$__rate_interval]"


def selector(metric: str, only: str = "") -> str:
    """Return a selector of a metric of the chosen instances."""
    return f"{metric}{{{', '.join(filter(None, (INSTANCE, only)))}}}"


def per_second(counter: str, by: str = "", only: str = "") -> str:
    """Return the increase of a counter per second, summed."""
    return f"{_summed(by)}(rate({selector(counter, only)}{_WINDOW}))"


def mean(histogram: str, by: str = "", only: str = "") -> str:
    """Return the mean of a histogram's observations."""
    total, count = (per_second(f"{histogram}_{part}", by, only) for part in ("sum", "count"))
    return ratio(total, count)


def quantile(share: float, histogram: str, by: str = "", only: str = "") -> str:
    """Return a quantile of a histogram, interpolated within its bucket."""
    buckets = per_second(f"{histogram}_bucket", f"le, {by}" if by else "le", only)
    return f"histogram_quantile({share}, {buckets})"


def quantiles(histogram: str) -> list[Dataquery]:
    """Return lines of the median and two high percentiles."""
    return [line(quantile(share, histogram), f"p{share * 100:.0f}") for share in (0.5, 0.95, 0.99)]


def share(part: str, whole: str, by: str = "", only: str = "") -> str:
    """Return the increase of a counter divided by another's."""
    return ratio(per_second(part, by, only), per_second(whole, by, only))


def ratio(part: str, whole: str) -> str:
    """Return one expression divided by another; no value for zero divisors."""
    return f"{part} / ({whole} > 0)"


def _summed(by: str) -> str:
    return f"sum by ({by}) " if by else "sum"
