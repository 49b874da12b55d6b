"""Reads and checks the file of certificate authorities that Tessera trusts for registries of driver images.

``tessera install`` reads it before it changes a cluster, and the controller reads it when it starts. Both refuse the
same files with the same messages. Only the certificates of a file are used. The text between them may be in any
language, and a private key in the file is not read.
"""

from pathlib import Path

from tessera.limits.drivers import REGISTRY_AUTHORITIES

_BEGIN = b"-----BEGIN CERTIFICATE-----"


class AuthoritiesError(ValueError):
    """A file contains no authorities to trust; the text names the file, the mistake and what to do."""


def read_authorities(file: Path) -> str:
    """The certificates of a file, in the file's sequence, as PEM in ASCII.

    Raises:
        AuthoritiesError: the file has no certificate, has one that cannot be read, or is too large.
    """
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509 import load_pem_x509_certificates

    data = _bounded(file)
    if _BEGIN not in data:
        raise AuthoritiesError(
            f"{file} has no certificate in PEM ({_BEGIN.decode()}); one in DER becomes one by:"
            f" openssl x509 -inform der -in {file} -out ca.crt"
        )
    try:
        found = load_pem_x509_certificates(data)
    except ValueError as error:
        raise AuthoritiesError(
            f"{file} has a certificate that is damaged or not whole; get it from the authority again"
        ) from error
    return "".join(each.public_bytes(Encoding.PEM).decode("ascii") for each in found)


def _bounded(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(REGISTRY_AUTHORITIES + 1)
    except OSError as error:
        raise AuthoritiesError(
            f"{file} cannot be read ({(error.strerror or str(error)).lower()}); name a file of certificates in PEM"
        ) from error
    if len(data) > REGISTRY_AUTHORITIES:
        raise AuthoritiesError(
            f"{file} is too long: {REGISTRY_AUTHORITIES} are allowed; name the authorities of your registries only,"
            " the system's are trusted anyway"
        )
    return data
