"""The webhook's certificate: reads it from the Secret, tells when to replace it, and makes the next one.

Pure except for randomness and :func:`load_certificate`. ``cryptography`` makes the certificates; the rotation is
hand-written, because cert-manager would be a second installation that every cluster needs. Where it is installed, it
can do the same (:mod:`tessera.webhook.certificate_manager`).

Every rotation makes a new authority with exactly one certificate, and discards the authority's key, so that nobody can
sign another one. The bundle that the API server trusts has each authority until its certificate has expired, so that
old and new certificates are both trusted during a rotation:

1. one replica writes the next certificate and the longer bundle into the Secret (compare-and-swap);
2. any replica writes the bundle into the webhook configuration;
3. each replica serves the new certificate only after that.

A rotation only adds to a bundle: the authority of the certificate that a replica serves stays, and so do those that the
configuration trusts already, also if the Secret is lost or damaged. Nobody has their keys, so this costs no security.
"""

import base64
import ipaddress
import os
import ssl
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Most authorities: certificate authorities in the webhook's CA bundle. Two overlap at a rotation; each lost Secret
#: adds one, and the newest stay.
AUTHORITIES = 16


#: Keys of the Secret; the first two are those of ``kubernetes.io/tls``.
CERTIFICATE, KEY, BUNDLE = "tls.crt", "tls.key", "ca.crt"

_BEGIN = b"-----BEGIN CERTIFICATE-----"
#: Certificates become valid this long before their creation, for clients whose clocks run late.
_SLACK = timedelta(hours=1)


class Certificate(msgspec.Struct, frozen=True):
    """A serving certificate, its key and the authorities to trust, all PEM."""

    certificate: bytes
    key: bytes
    bundle: bytes

    def data(self) -> dict[str, bytes]:
        """Returns the Secret's ``data``."""
        return {CERTIFICATE: self.certificate, KEY: self.key, BUNDLE: self.bundle}


@lru_cache(maxsize=2 * AUTHORITIES)
def _load(pem: bytes) -> x509.Certificate:
    """Returns a certificate; the same few are asked about at every check.

    Raises:
        ValueError: the text is none.
    """
    return x509.load_pem_x509_certificate(pem)


def read_secret(data: dict[str, bytes]) -> Certificate | None:
    """Reads a Secret; None if a part is missing or unreadable, which counts as no certificate."""
    found = Certificate(data.get(CERTIFICATE, b""), data.get(KEY, b""), data.get(BUNDLE, b""))
    try:
        serving = _load(found.certificate)
        key = serialization.load_pem_private_key(found.key, None)
        authorities = x509.load_pem_x509_certificates(found.bundle)
    except (ValueError, TypeError):
        return None
    if serving.public_key() != key.public_key() or not any(_is_signed_by(serving, one) for one in authorities):
        return None
    return found


@lru_cache(maxsize=AUTHORITIES)
def authority_fingerprints(bundle: bytes) -> frozenset[bytes]:
    """Returns the fingerprints of a bundle's authorities; none if it is no valid bundle."""
    try:
        return frozenset(one.fingerprint(hashes.SHA256()) for one in x509.load_pem_x509_certificates(bundle))
    except ValueError:
        return frozenset()


def join_bundles(bundles: Iterable[bytes], now: float) -> bytes:
    """Joins the authorities of several bundles, each once, in order; drops expired and invalid ones."""
    found: dict[bytes, bytes] = {}
    for bundle in bundles:
        for one in _valid(bundle, now):
            found.setdefault(one.fingerprint(hashes.SHA256()), _pem(one))
    return b"".join(list(found.values())[:AUTHORITIES])


def widen_trust(present: Iterable[bytes], own: Iterable[bytes], now: float) -> str | None:
    """The ``caBundle`` in which own authorities come before those that are trusted; None if each bundle has them.

    No valid authority goes while there are at most :data:`AUTHORITIES`, so that replicas, older and newer ones, do not
    undo each other's work.
    """
    bundles, wanted = list(present), join_bundles(own, now)
    if all(authority_fingerprints(wanted) <= authority_fingerprints(each) for each in bundles):
        return None
    return base64.b64encode(join_bundles([wanted, *bundles], now)).decode()


def load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Serves this certificate from the next handshake on; the key goes to OpenSSL by an anonymous file, to no disk.

    Raises:
        ssl.SSLError: OpenSSL refuses the certificate.
    """
    file = os.memfd_create("tessera-webhook", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate.certificate + certificate.key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def is_valid(found: Certificate, now: float) -> bool:
    """True if the certificate is valid now."""
    serving = _load(found.certificate)
    return serving.not_valid_before_utc.timestamp() <= now < serving.not_valid_after_utc.timestamp()


def needs_renewal(found: Certificate, names: Sequence[str], now: float) -> bool:
    """True if the certificate must be replaced: it is not valid yet, near its end, or lacks a name.

    Args:
        found: the certificate.
        names: DNS names and IP addresses by which clients reach the webhook.
        now: seconds since 1970.
    """
    return not is_valid(found, now) or now >= renewal_time(found) or not set(names) <= set(_names(found))


def renewal_time(found: Certificate) -> float:
    """Returns the time at which two thirds of a certificate's life are over, seconds since 1970."""
    serving = _load(found.certificate)
    begin, end = serving.not_valid_before_utc.timestamp(), serving.not_valid_after_utc.timestamp()
    return begin + (end - begin) * 2 / 3


def issue(names: Sequence[str], now: float, days: int, before: bytes = b"") -> Certificate:
    """Makes a new authority and its one certificate.

    Args:
        names: DNS names and IP addresses of the server, at least one.
        now: seconds since 1970.
        days: days for which both are valid.
        before: the present bundle; its authorities that have not expired are kept.
    """
    begin, end = _at(now) - _SLACK, _at(now) + timedelta(days=days)
    authority_key, serving_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"tessera-webhook-ca {_at(now):%Y-%m-%d}")
    authority = (
        _builder(subject, subject, authority_key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    serving = (
        _builder(_name("tessera-webhook"), subject, serving_key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Certificate(
        certificate=_pem(serving),
        key=serving_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        bundle=join_bundles([_pem(authority), before], now),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _valid(bundle: bytes, now: float) -> Iterator[x509.Certificate]:
    """Yields the authorities that have not expired; the bundle may contain any other text."""
    for part in bundle.split(_BEGIN)[1:]:
        try:
            one = _load(_BEGIN + part)
        except ValueError:
            continue
        if one.not_valid_after_utc.timestamp() > now:
            yield one


def _names(found: Certificate) -> Sequence[str]:
    serving = _load(found.certificate)
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _is_signed_by(serving: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        serving.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _at(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
