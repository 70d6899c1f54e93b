"""Create certificate authorities and certificates for tests with the `openssl` command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
NAMES = "subjectAltName=DNS:localhost,DNS:verifier.internal,IP:127.0.0.1"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority; all its files are in one directory."""

    def __init__(self, directory: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl command")
        self._directory = directory
        self.pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
        out = ("-keyout", self.pair.key, "-out", self.pair.certificate)
        _openssl("req", "-x509", *NEW_KEY, *out, "-days", "2", "-subj", f"/CN={name}")

    @property
    def certificate(self) -> Path:
        """The authority's own certificate, which clients and servers trust."""
        return self.pair.certificate

    def sign(self, name: str, use: str, days: int = 2, names: str = NAMES) -> Pair:
        """Create a certificate of a server (`use` serverAuth) or a client (clientAuth); -1 days: expired."""
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        _openssl("req", "-new", *NEW_KEY, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
        extensions.write_text(f"basicConstraints=CA:FALSE\nextendedKeyUsage={use}\n{names}\n")
        signed_by = ("-CA", self.pair.certificate, "-CAkey", self.pair.key, "-CAcreateserial")
        out = ("-out", pair.certificate, "-days", str(days), "-extfile", extensions)
        _openssl("x509", "-req", "-in", request, *signed_by, *out)
        return pair


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
