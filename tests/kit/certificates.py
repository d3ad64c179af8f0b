"""Certificates of an authority for one test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FROM = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Authority:
    """An authority, and the folder with its own certificate and those that it issues."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    name: x509.Name

    @classmethod
    def make(cls, folder: Path, name: str = "authority") -> Authority:
        """Return a new authority, with its certificate in ``NAME.pem``."""
        made = cls(folder, ec.generate_private_key(ec.SECP256R1()), _named(name))
        made._write(name, made.key, made.name, is_authority=True)
        return made

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a new certificate for localhost, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self._write(name, key, _named(name), is_authority=False)
        key_path = self.folder / f"{name}.key"
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return path, key_path

    def _write(
        self, name: str, key: ec.EllipticCurvePrivateKey, subject: x509.Name, *, is_authority: bool
    ) -> Path:
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(FROM)
            .not_valid_after(FROM + timedelta(days=365 * 50))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), True)
            .add_extension(usage, True)
            .sign(self.key, hashes.SHA256())
        )
        path = self.folder / f"{name}.pem"
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
