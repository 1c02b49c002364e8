#!/usr/bin/env python3
"""Certificates for the SuperLink and a key pair for each SuperNode: `python deploy/make_keys.py --help`.

What exists already is left alone, so the same command adds a node. Needs the `cryptography` that Flower brings.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import re
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def main() -> int:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("keys"), help="folder for all files; made if missing")
    parser.add_argument(
        "--host",
        action="append",
        required=True,
        help="name or IP address under which nodes reach the SuperLink; repeatable",
    )
    parser.add_argument("--node", action="append", default=[], help="name of a SuperNode; repeatable")
    parser.add_argument("--days", type=int, default=365, help="validity of the SuperLink's certificate")
    parser.add_argument("--renew", action="store_true", help="a new SuperLink certificate from the same authority")
    options = parser.parse_args()
    for name in options.node:
        if not re.fullmatch(r"[\w.-]+", name):
            parser.error(f"--node takes letters, digits, '.', '-' and '_', got {name!r}")
    options.out.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = make_authority(options.out)
    if options.renew or not (options.out / "superlink.crt").is_file():
        make_server(options.out, authority, options.host, options.days)
    for name in options.node:
        if not (options.out / f"{name}.key").is_file():
            make_node(options.out, name)
    print(
        f"{options.out.resolve()}: ca.crt for every SuperNode and for whoever runs flwr, superlink.* for the SuperLink,"
    )
    print("NAME.key for that SuperNode alone, NAME.pub to register it. Keep ca.key off line.")
    return 0


Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def make_authority(folder: Path) -> Authority:
    """Read the certificate authority, or make it (ten years)."""
    if (folder / "ca.key").is_file():
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SystemExit(f"{folder / 'ca.key'}: not an EC key")
        return x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), key
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fastpfrec authority")])
    certificate = (
        _builder(name, name, key.public_key(), days=3650)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.key", _pem(key), secret=True)
    _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def make_server(folder: Path, authority: Authority, hosts: list[str], days: int) -> None:
    """Make the SuperLink's key and certificate for `hosts` (names or IP addresses)."""
    issuer, issuer_key = authority
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    _write(folder / "superlink.key", _pem(key), secret=True)
    _write(folder / "superlink.crt", certificate.public_bytes(serialization.Encoding.PEM))


def make_node(folder: Path, name: str) -> None:
    """Make a SuperNode's key pair (P-384, OpenSSH format, as Flower reads it)."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    _write(folder / f"{name}.key", private, secret=True)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(folder / f"{name}.pub", public + b"\n")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    # An hour back: devices' clocks differ.
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, secret: bool = False) -> None:
    """Write a file, a secret one for its owner alone from the start."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o644), "wb") as file:
        file.write(data)


if __name__ == "__main__":
    sys.exit(main())
