"""What an operator writes for speculator services. Pure.

10.0.0.1:50053,drafts:50053              two services: all draft for every request
10.0.0.1:50053|10.0.0.2:50053            one service with two replicas, which share the requests
dns:///speculators.example:50053         one service, a replica for each address of the name
"""

from specinfer.errors import SettingError
from specinfer.service.channel import check_target, split_address


def service_addresses(text: str) -> list[str]:
    """The services, in order.

    Raises:
        SettingError: if one is no address, or one of several replicas no `host:port`.
    """
    services = [part.strip() for part in text.split(",") if part.strip()]
    for service in services:
        _check(service)
    return services


def replica_addresses(service: str) -> list[str]:
    """The replicas of a service, names not looked up."""
    return [replica.strip() for replica in service.split("|")]


def _check(service: str) -> None:
    replicas = replica_addresses(service)
    for replica in replicas:
        if len(replicas) > 1:
            split_address("speculators", replica)
        else:
            check_target("speculators", replica)
    if len(set(replicas)) < len(replicas):
        raise SettingError("speculators", service, "a replica is named twice")
