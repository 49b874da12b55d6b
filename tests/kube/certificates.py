"""A certificate authority for tests."""

import datetime as dt
import ipaddress
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificate(msgspec.Struct, frozen=True):
    """A certificate and its key, PEM."""

    pem: bytes
    key: bytes

    def write(self, folder: Path) -> Path:
        """Both in one file."""
        path = folder / "pair.pem"
        path.write_bytes(self.pem + self.key)
        return path


class Authority:
    """Signs certificates for an address or a name. Its own is signed by the one above, or by itself.

    It is valid for these hours from now on.
    """

    def __init__(self, above: "Authority | None" = None, hours: tuple[int, int] = (-1, 1)) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority" if above is None else "lower authority")
        self._certificate = (above or self)._sign(
            self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=None), hours
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str, hours: tuple[int, int] = (-1, 1)) -> Certificate:
        """A certificate that is valid for these hours from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(common_name))
        except ValueError:
            subject = x509.DNSName(common_name)
        extension = x509.SubjectAlternativeName([subject])
        made = self._sign(_name(common_name), key.public_key(), extension, hours)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(made.public_bytes(serialization.Encoding.PEM), private)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        extension: x509.ExtensionType,
        hours: tuple[int, int] = (-1, 1),
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(hours=hours[0]))
            .not_valid_after(now + dt.timedelta(hours=hours[1]))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
