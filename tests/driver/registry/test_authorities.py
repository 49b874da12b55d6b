"""The file of authorities: what is taken of it, what is refused, and that registries are then trusted by it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from tests.driver.registry.programs import registry
from tests.kube.certificates import Authority
from tests.support.satellites import new_process

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery, Outcome
from tessera.driver.limits import REGISTRY_AUTHORITIES
from tessera.driver.registry.client import RegistryOptions
from tessera.driver.registry.credentials import AuthoritiesError, read_authorities
from tessera.driver.registry.resolver import open_image_resolver
from tessera.gpu_operator.driver_policy import ImageSource

POOL = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ca.pem"


def test_all_certificates_of_a_file_are_taken_in_their_order(file: Path) -> None:
    one, other = Authority().pem, Authority().pem
    file.write_bytes(one + b"\n" + other)
    assert read_authorities(file) == (one + other).decode()


def test_what_stands_between_them_may_be_in_any_language_and_with_any_ends_of_lines(file: Path) -> None:
    pem = Authority().pem
    file.write_bytes("# Behörde\r\n".encode("latin-1") + pem.replace(b"\n", b"\r\n"))
    assert read_authorities(file) == pem.decode()


def test_a_private_key_in_the_same_file_stays_there(file: Path) -> None:
    pair = Authority().issue("registry.local")
    file.write_bytes(pair.key + pair.pem)
    assert read_authorities(file) == pair.pem.decode()


PEM = Authority().pem
REFUSED = {
    "nothing": (b"", "has no certificate in PEM"),
    "a key": (Authority().issue("x").key, "has no certificate in PEM"),
    "DER": (load_pem_x509_certificate(PEM).public_bytes(Encoding.DER), "openssl x509 -inform der -in"),
    "a part of one": (PEM[: len(PEM) // 2], "has a certificate that is damaged or not whole"),
    "a damaged one after a good one": (PEM + PEM.replace(b"MII", b"MIJ"), "is damaged or not whole; get it"),
    "more than is read": (
        PEM + b"#" * REGISTRY_AUTHORITIES,
        "is too long: at most 524,288 bytes are allowed; name the authorities of your registries only",
    ),
}


@pytest.mark.parametrize(("content", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_a_file_without_authorities_is_refused_by_its_name(file: Path, content: bytes, told: str) -> None:
    file.write_bytes(content)
    with pytest.raises(AuthoritiesError) as refused:
        read_authorities(file)
    assert str(refused.value).startswith(f"{file} ")
    assert told in str(refused.value)


def test_a_file_that_cannot_be_read_says_why(file: Path, tmp_path: Path) -> None:
    with pytest.raises(AuthoritiesError, match=r"ca\.pem cannot be read \(no such file or directory\).*name a file"):
        read_authorities(file)
    with pytest.raises(AuthoritiesError, match=r"cannot be read \(is a directory\)"):
        read_authorities(tmp_path)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An empty registry of a private authority, and the file of that authority."""
    folder, authority = tmp_path_factory.mktemp("private"), Authority()
    pair = authority.issue("127.0.0.1")
    for name, content in (("tls.pem", pair.pem), ("tls.key", pair.key), ("ca.crt", authority.pem)):
        (folder / name).write_bytes(content)
    files = {"certificate": str(folder / "tls.pem"), "key": str(folder / "tls.key")}
    with registry(folder / "storage", http={"tls": files}) as running:
        yield running.host, folder / "ca.crt"


async def asked(host: str, options: RegistryOptions) -> Outcome:
    """Returns the outcome that the controller's own resolver gets from a registry."""
    query = ImageQuery(source=ImageSource(image=f"{host}/driver:1"), pool=POOL, kind=ImageKind.VERBATIM)
    async with (process := new_process()).at_end:
        found = open_image_resolver(options, "tessera-system", process)
        return (await found.resolve(query)).outcome


def test_the_controller_trusts_a_registry_of_an_authority_that_it_is_told_of(private: tuple[str, Path]) -> None:
    host, ca = private
    assert asyncio.run(asked(host, RegistryOptions(ca=ca))) is Outcome.NOT_FOUND
    assert asyncio.run(asked(host, RegistryOptions())) is Outcome.UNREACHABLE
