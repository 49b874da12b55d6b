"""The options of the provider by which visitors sign in."""

import pytest

from tessera.dashboard.access.provider import make_provider


@pytest.mark.parametrize(
    ("issuer", "origin"),
    [
        ("https://login.example.com", "https://login.example.com"),
        ("https://login.example.com:8443/realms/gpu", "https://login.example.com:8443"),
        ("http://localhost:5556/dex", "http://localhost:5556"),
    ],
)
def test_the_page_may_connect_to_the_issuers_origin(issuer: str, origin: str) -> None:
    provider = make_provider(issuer, "page", ["groups", "openid"])
    assert provider is not None
    assert (provider.origin, provider.scope) == (origin, "openid email groups")


def test_without_options_there_is_none() -> None:
    assert make_provider(None, None, ()) is None


@pytest.mark.parametrize(
    ("issuer", "client", "scopes", "words"),
    [
        ("https://login.example.com", None, (), "go together"),
        (None, "page", (), "go together"),
        (None, None, ("groups",), "go together"),
        ("login.example.com", "page", (), "is no issuer"),
        ("https://login.example.com/?realm=a", "page", (), "is no issuer"),
        ("https://user@login.example.com", "page", (), "is no issuer"),
        ("https://a.example; script-src *", "page", (), "is no issuer"),
        ("http://login.example.com", "page", (), "is not HTTPS"),
        ("https://login.example.com", "page", ("groups email",), "is no scope"),
    ],
)
def test_a_wrong_option_is_named(issuer: str | None, client: str | None, scopes: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_provider(issuer, client, scopes)
