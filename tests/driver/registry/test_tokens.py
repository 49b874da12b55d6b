"""Tokens: the challenge of a 401, and the servers that may see credentials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.driver.registry.tokens import choose_challenge, may_be_asked, parse_challenges


def test_docker_hubs_challenge_is_read() -> None:
    header = 'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push"'
    (found,) = parse_challenges([header])
    assert found.scheme == "bearer"
    assert found.parameters == {
        "realm": "https://auth.docker.io/token",
        "service": "registry.docker.io",
        "scope": "repository:a/b:pull,push",
    }


def test_a_token_is_preferred_among_several_in_one_header_or_in_two() -> None:
    one = parse_challenges(['Basic realm="a", Bearer realm="https://b", service=c'])
    two = parse_challenges(['Basic realm="a"', 'bearer realm="https://b",service=c'])
    for found in (one, two):
        best = choose_challenge(found)
        assert best is not None
        assert (best.scheme, best.parameters["service"]) == ("bearer", "c")


def test_quotes_inside_quotes_are_taken_off() -> None:
    (found,) = parse_challenges([r'Basic realm="say \"friend\""'])
    assert found.parameters["realm"] == 'say "friend"'


@pytest.mark.parametrize("header", ["", "Negotiate", "Digest realm=x", "=", ",,", '"'])
def test_what_is_not_known_is_not_chosen(header: str) -> None:
    assert choose_challenge(parse_challenges([header])) is None


@given(st.text(max_size=200))
def test_any_header_is_read_without_harm(header: str) -> None:
    for each in parse_challenges([header, "Bearer " + header, 'Basic realm="' + header]):
        assert each.scheme == each.scheme.lower()


@pytest.mark.parametrize(
    ("realm", "registry", "plain", "wanted"),
    [
        ("https://auth.docker.io/token", "registry-1.docker.io", False, True),
        ("http://auth.docker.io/token", "registry-1.docker.io", False, False),
        ("http://nvcr.io/token", "nvcr.io", False, False),
        ("http://10.0.0.1:5001/token", "10.0.0.1:5000", True, True),
        ("http://10.0.0.2:5001/token", "10.0.0.1:5000", True, False),
        ("https://10.0.0.2/token", "10.0.0.1:5000", True, True),
        ("ftp://10.0.0.1/token", "10.0.0.1:5000", True, False),
        ("http://[bad/token", "10.0.0.1:5000", True, False),
    ],
)
def test_over_plain_http_only_the_registrys_own_host_is_told(
    realm: str, registry: str, plain: bool, wanted: bool
) -> None:
    assert may_be_asked(realm, registry, plain=plain) is wanted
