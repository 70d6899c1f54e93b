"""Check TLS files, and make credentials for gRPC and Redis.

All files are PEM. Without any file a connection is plaintext.
"""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from specinfer.errors import SettingError

log = logging.getLogger(__name__)


FileStamp: TypeAlias = tuple[int, int, int] | None
"""(inode, modification time in ns, size in bytes); None without a file."""


def stamp_of(path: Path) -> FileStamp:
    """Return a value that changes when a file is written or replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


@dataclass(frozen=True, slots=True)
class ClientTls:
    """A client's TLS settings. Any setting enables TLS."""

    ca: Path | None = None
    """Trusted authorities of server certificates."""
    certificate: Path | None = None
    """The client's own certificate, for servers that require one."""
    key: Path | None = None
    """Private key of the certificate."""
    server_name: str = ""
    """Expected name in the server's certificate; empty: the host in the address."""
    prefix: str = "tls"
    """Prefix of the settings' names in errors, as `tls` in `tls_ca`."""

    @property
    def wanted(self) -> bool:
        """True if any setting is given."""
        return bool(self.ca or self.certificate or self.key or self.server_name)

    def check(self) -> None:
        """Check that the files exist, are valid and match."""
        if not self.wanted:
            return
        if self.ca is None:
            raise SettingError(f"{self.prefix}_ca", None, "required with other TLS settings")
        _check_authorities(f"{self.prefix}_ca", self.ca)
        _check_pair(self.prefix, self.certificate, self.key)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's TLS settings. A certificate enables TLS."""

    certificate: Path | None = None
    """The server's certificate, with intermediate certificates."""
    key: Path | None = None
    """Private key of the certificate."""
    client_ca: Path | None = None
    """Authorities of client certificates; clients without such a certificate are refused."""

    @property
    def wanted(self) -> bool:
        """True if any setting is given."""
        return bool(self.certificate or self.key or self.client_ca)

    @property
    def files(self) -> list[Path]:
        """All given files."""
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]

    def check(self) -> None:
        """Check that the files exist, are valid and match."""
        if not self.wanted:
            return
        if self.certificate is None:
            raise SettingError("tls_certificate", None, "required with tls_key or tls_client_ca")
        _check_pair("tls", self.certificate, self.key)
        if self.client_ca is not None:
            _check_authorities("tls_client_ca", self.client_ca)


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Return a client's credentials; the files are read only now."""
    tls.check()
    files = {"ca": tls.ca, "key": tls.key, "certificate": tls.certificate}
    read = {name: _read(f"{tls.prefix}_{name}", path) for name, path in files.items() if path is not None}
    return grpc.ssl_channel_credentials(read["ca"], read.get("key"), read.get("certificate"))


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Return a server's credentials; new connections use changed files."""
    tls.check()
    certificates = ServerCertificates(tls)
    return grpc.dynamic_ssl_server_credentials(
        certificates.configuration,
        certificates.refresh,  # type: ignore[arg-type]  # the type stubs do not allow None
        require_client_authentication=tls.client_ca is not None,
    )


def redis_tls(
    url: str, ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> dict[str, Any]:
    """Return TLS arguments for `Redis.from_url(url)`."""
    files = {"ssl_ca_certs": ca, "ssl_certfile": certificate, "ssl_keyfile": key}
    named = {name: str(path) for name, path in files.items() if path is not None}
    if not url.startswith("rediss://"):
        if named:
            raise SettingError(
                "redis_url",
                url.partition("//")[0] + "//...",
                "must begin with rediss://, as TLS files are set",
            )
        return {}
    if named:
        ClientTls(ca, certificate, key, prefix="redis_tls").check()
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **named}


class ServerCertificates:
    """TLS files of a server; gRPC calls `refresh` for every connection."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls, self._seen = tls, [stamp_of(path) for path in tls.files]
        self.configuration = _configuration(tls)
        """gRPC's configuration from the latest valid files."""

    def refresh(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a new configuration if changed files are valid, else None."""
        now = [stamp_of(path) for path in self._tls.files]
        if now == self._seen:
            return None
        self._seen = now
        try:
            self._tls.check()
            self.configuration = _configuration(self._tls)
        except SettingError as error:
            log.error("the previous TLS files stay in use, the changed files are not used: %s", error)
            return None
        log.info("the changed TLS files are used for new connections")
        return self.configuration


def _configuration(tls: ServerTls) -> grpc.ServerCertificateConfiguration:
    assert tls.certificate is not None
    assert tls.key is not None
    pair = (_read("tls_key", tls.key), _read("tls_certificate", tls.certificate))
    authorities = None if tls.client_ca is None else _read("tls_client_ca", tls.client_ca)
    return grpc.ssl_server_certificate_configuration([pair], authorities)


def _check_pair(prefix: str, certificate: Path | None, key: Path | None) -> None:
    """Check that certificate and key match, if given."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        missing = "certificate" if certificate is None else "key"
        raise SettingError(f"{prefix}_{missing}", None, "certificate and key must be given together")
    _read(f"{prefix}_certificate", certificate)
    _read(f"{prefix}_key", key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = f"must be a PEM key without password that belongs to {certificate}"
        raise SettingError(f"{prefix}_key", str(key), reason) from error


def _no_password() -> str:
    """Return an empty password, so that OpenSSL never asks for a password."""
    return ""


def _check_authorities(setting: str, path: Path) -> None:
    _read(setting, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise SettingError(setting, str(path), "must contain PEM certificates") from error


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingError(setting, str(path), f"cannot be read: {error.strerror or error}") from error
