"""An authority of the test's own, and a certificate for loopback signed by it."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_authority(folder: Path) -> Path:
    """The file with the authority's certificate."""
    _openssl(
        folder, "req", "-x509", *_CURVE, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
        "-subj", "/CN=authority of a test", "-addext", "basicConstraints=critical,CA:TRUE",
        "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    return folder / "ca.pem"


def server_context(folder: Path, *names: str) -> ssl.SSLContext:
    """A server that is `localhost`, 127.0.0.1 and `names`, by the word of the authority in `folder`."""
    further = "".join(f",DNS:{name}" for name in names)
    (folder / "extensions").write_text(f"subjectAltName=DNS:localhost,IP:127.0.0.1{further}\n")
    _openssl(folder, "req", *_CURVE, "-keyout", "key.pem", "-out", "request", "-subj", "/CN=localhost")
    _openssl(
        folder, "x509", "-req", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
        "-out", "certificate.pem", "-days", "2", "-extfile", "extensions",
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
