"""Addresses as users and operators write them: `host:port`, and what gRPC connects to besides."""

from specinfer.errors import SettingError

_SCHEMES = ("dns:///", "dns:", "ipv4:", "ipv6:")
"""Of gRPC's names, those before a host and a port."""


def split_address(setting: str, address: str, lowest_port: int = 1) -> tuple[str, int]:
    """Host and port of `host:port`. An IPv6 host stands in brackets, which are taken off.

    Raises:
        SettingError: if it is no such address. gRPC would ask port 443 instead of one that is missing,
            and the remainder by 65,536 of one that is too large.
    """
    host, _, port = address.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdecimal() and lowest_port <= int(port) < 2**16
    if not inner or not is_port or (":" in inner and inner is host):
        raise SettingError(setting, address, f"must be host:port with a port from {lowest_port} to 65535")
    return inner, int(port)


def check_target(setting: str, address: str, lowest_port: int = 1) -> str:
    """What a gRPC channel or server can be opened with: `host:port`, `dns:///host:port`, `unix:path`.

    Raises:
        SettingError: if it is none.
    """
    if address.startswith("unix:") and address != "unix:":
        return address
    scheme = next((scheme for scheme in _SCHEMES if address.startswith(scheme)), "")
    try:
        split_address(setting, address.removeprefix(scheme), lowest_port)
    except SettingError as error:
        raise SettingError(setting, address, error.why) from error
    return address


def split_targets(setting: str, text: str) -> list[str]:
    """Targets of gRPC with commas between them.

    Raises:
        SettingError: if one is empty or none.
    """
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise SettingError(setting, text, "must be host:port, several with commas between them")
    return [check_target(setting, target) for target in found]
