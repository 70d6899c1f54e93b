"""Common PromQL expressions of dashboards, in text form.

`$instance`, `$speculator` and `$__rate_interval` are variables of Grafana. `only` are label matchers that are
added to those of the instance, `by` the labels whose values become separate lines.
"""

INSTANCE = 'instance=~"$instance"'
SPECULATOR = 'speculator=~"$speculator"'
_WINDOW = "[$__rate_interval]"


def selector(metric: str, only: str = "") -> str:
    """Return a metric of the chosen instances."""
    return f"{metric}{{{', '.join(filter(None, (INSTANCE, only)))}}}"


def per_second(counter: str, by: str = "", only: str = "") -> str:
    """Return the increase of a counter per second, summed."""
    return f"{_summed(by)}(rate({selector(counter, only)}{_WINDOW}))"


def mean(histogram: str, by: str = "", only: str = "") -> str:
    """Return the mean of what a histogram observed."""
    total, count = (per_second(f"{histogram}_{part}", by, only) for part in ("sum", "count"))
    return ratio(total, count)


def quantile(share: float, histogram: str, by: str = "", only: str = "") -> str:
    """Return a quantile of what a histogram observed, interpolated within its bucket."""
    buckets = per_second(f"{histogram}_bucket", f"le, {by}" if by else "le", only)
    return f"histogram_quantile({share}, {buckets})"


def share(part: str, whole: str, by: str = "", only: str = "") -> str:
    """Return the increase of one counter over that of another."""
    return ratio(per_second(part, by, only), per_second(whole, by, only))


def ratio(part: str, whole: str) -> str:
    """Return one expression over another; nothing while the other is zero."""
    return f"{part} / ({whole} > 0)"


def _summed(by: str) -> str:
    return f"sum by ({by}) " if by else "sum"
