"""Whom the API server's front proxy speaks for; nobody is believed without its certificate."""

from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from tessera.access.reviewer import Person
from tessera.dashboard.view.front_proxy import PROXY_NAMES, FrontProxy, NotProxiedError, read_front_proxy

CERTIFICATE: dict[str, Any] = {"subject": ((("organizationName", "o"),), (("commonName", "front-proxy-client"),))}
DATA = {
    "requestheader-client-ca-file": "PEM",
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User", "X-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def proxy(**changes: str) -> FrontProxy:
    found = read_front_proxy({**DATA, **{key.replace("_", "-"): value for key, value in changes.items()}})
    assert found is not None
    return found


def test_a_user_with_groups_and_further_facts() -> None:
    given = headers(
        ("x-remote-user", "ann"),
        ("X-Remote-Group", "team-a"),
        ("X-Remote-Group", "system:authenticated"),
        ("X-Remote-Extra-Authentication.kubernetes.io%2Fpod-name", "p"),
    )
    wanted = Person(
        "ann", groups=("team-a", "system:authenticated"), extra=(("authentication.kubernetes.io/pod-name", ("p",)),)
    )
    assert proxy().identify(given, CERTIFICATE) == wanted


def test_the_first_header_with_a_user_counts() -> None:
    assert proxy().identify(headers(("X-User", "bob")), CERTIFICATE).name == "bob"


@pytest.mark.parametrize(
    ("certificate", "user"),
    [
        (None, "ann"),
        ({}, "ann"),
        ({"subject": ((("commonName", "somebody"),),)}, "ann"),
        ({"subject": ()}, "ann"),
        (CERTIFICATE, ""),
    ],
)
def test_others_are_not_believed(certificate: dict[str, Any] | None, user: str) -> None:
    with pytest.raises(NotProxiedError):
        proxy().identify(headers(("X-Remote-User", user)), certificate)


def test_without_names_any_certificate_of_the_authority_counts() -> None:
    other = {"subject": ((("commonName", "other"),),)}
    assert proxy(requestheader_allowed_names="[]").identify(headers(("X-Remote-User", "ann")), other).name == "ann"


@pytest.mark.parametrize("names", ["front-proxy-client", "null", "", "{}", "[1]", '[""]'])
@pytest.mark.parametrize(
    "subject", [CERTIFICATE["subject"], (), ((("commonName", ""),),), ((("organizationName", "o"),),)]
)
def test_names_that_cannot_be_read_let_nobody_in(names: str, subject: Any) -> None:
    """Least of all a certificate without a name."""
    with pytest.raises(NotProxiedError):
        proxy(requestheader_allowed_names=names).identify(headers(("X-Remote-User", "a")), {"subject": subject})


def test_a_cluster_without_a_front_proxy_has_nobody_to_believe() -> None:
    assert read_front_proxy({"client-ca-file": "PEM"}) is None


def test_names_are_bounded() -> None:
    many = "[" + ",".join(f'"{number}"' for number in range(1000)) + "]"
    assert len(proxy(requestheader_allowed_names=many).names) == PROXY_NAMES
