"""What an operator writes for speculator services, and what gRPC is told. Pure.

    10.0.0.1:50053,10.0.0.2:50053            two services
    10.0.0.1:50053|10.0.0.2:50053            one service with two replicas
    dns:///speculators.example:50053         one service, its replicas by name, looked up again when one dies

gRPC connects to the first replica that answers and moves on when that one is gone.
"""

from ipaddress import ip_address

from specinfer.errors import SettingError

_SCHEMES = ("ipv4:", "ipv6:")


def service_addresses(text: str) -> list[str]:
    """One gRPC target per service, in order.

    Raises:
        SettingError: if a replica is not an IP address with a port: names are for `dns:///`.
    """
    return [_target(part.strip()) for part in text.split(",") if part.strip()]


def _target(service: str) -> str:
    if "|" not in service:
        return service
    written = next((scheme for scheme in _SCHEMES if service.startswith(scheme)), "")
    replicas = [replica.strip() for replica in service.removeprefix(written).split("|")]
    schemes = {_scheme(replica, service) for replica in replicas}
    if len(schemes) > 1 or (written and schemes != {written}):
        raise SettingError("speculators", service, "replicas must be all IPv4 or all IPv6")
    return schemes.pop() + ",".join(replicas)


def _scheme(replica: str, service: str) -> str:
    host, colon, port = replica.rpartition(":")
    try:
        version = ip_address(host.strip("[]")).version
    except ValueError as error:
        raise SettingError(
            "speculators", service, f"replica {replica} is not an IP address and a port"
        ) from error
    if not (colon and port.isdigit()):
        raise SettingError("speculators", service, f"replica {replica} is not an IP address and a port")
    return f"ipv{version}:"
