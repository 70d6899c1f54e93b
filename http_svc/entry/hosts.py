"""Check `Host` headers, as a defence against DNS rebinding."""

import ipaddress
from collections.abc import Sequence


class AllowedHosts:
    """Accepted `Host` headers: configured names, and numeric addresses."""

    def __init__(self, names: Sequence[str]) -> None:
        """Allow names; `*.example.com` allows all subdomains, `*` allows every name."""
        self._names = [name.lower() for name in names]

    def allow(self, host: str) -> bool:
        """Return whether a `Host` header, with or without port, is accepted."""
        name = _without_port(host.strip().lower())
        if not name or _is_address(name):
            return True
        return any(_matches(name, allowed) for allowed in self._names)


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback name or address."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _matches(name: str, allowed: str) -> bool:
    if allowed == "*" or name.rstrip(".") == allowed:
        return True
    return allowed.startswith("*.") and name.rstrip(".").endswith(allowed[1:])


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
