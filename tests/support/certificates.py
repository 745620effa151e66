"""Certificates for servers on loopback, of an authority that is made with them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nri_policy.foundation.tls import accept_what_kubectl_accepts


def write_certificates(folder: Path) -> None:
    """Write a new authority to `ca.crt`, and what a server at 127.0.0.1 needs to `server.pem`."""
    authority, key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    issuer = _name("test authority")
    root = _certificate(issuer, issuer, authority, authority, ca=True)
    leaf = _certificate(_name("test server"), issuer, key, authority, ca=False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + leaf.public_bytes(pem)
    )


def server_context(folder: Path) -> ssl.SSLContext:
    """Return the server's side of TLS with the certificates in *folder*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def client_context(ca: Path) -> ssl.SSLContext:
    """Return the side of a client in Go, as kubectl and kube-scheduler: it trusts *ca*."""
    context = ssl.create_default_context(cafile=ca)
    accept_what_kubectl_accepts(context)
    return context


def demand_rfc5280(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all default contexts demand RFC 5280, as those of Python 3.13 do.

    The test authority has no key usage, so it is refused.
    """
    create = ssl.create_default_context

    def create_strict(cafile: str | Path | None = None) -> ssl.SSLContext:
        context = create(cafile=cafile)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_strict)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=24))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(address, critical=False)
        .add_extension(own_id, critical=False)
        .add_extension(signer_id, critical=False)
        .sign(signer, hashes.SHA256())
    )
