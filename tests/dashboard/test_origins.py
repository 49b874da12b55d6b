"""The names under which the page is served, and the options of the provider by which visitors sign in."""

import pytest

from tessera.dashboard.origins import PageNames, make_provider

PAGE = PageNames(["https://gpu.example.com", "http://[2001:db8::1]:8088"], loopback=True)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("gpu.example.com", None),
        ("GPU.example.com", "https://gpu.example.com"),
        ("gpu.example.com:443", "https://gpu.example.com"),
        ("[2001:db8::1]:8088", "http://[2001:db8::1]:8088"),
        ("localhost:9999", "http://localhost:9999"),
        ("127.0.0.1:8088", "https://127.0.0.1:8088"),
        ("127.9.0.3:8088", "http://127.9.0.3:8088"),
        ("[::1]:8088", None),
        ("localhost", "http://localhost"),
    ],
)
def test_own_names_are_admitted(host: str, origin: str | None) -> None:
    assert PAGE.admit(host, origin)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("", None),
        ("evil.example", None),
        ("localhost.evil.example", None),
        ("127.9.0.3.evil.example:8088", None),
        ("128.9.0.3:8088", None),
        ("127.9.3:8088", None),
        ("127.9.0.3:8088", "http://127.9.0.4:8088"),
        ("localhost:8088.evil.example", None),
        ("gpu.example.com:80", None),
        ("gpu.example.com", "http://gpu.example.com"),
        ("gpu.example.com", "https://evil.example"),
        ("gpu.example.com", "null"),
        ("localhost:8088", "http://localhost:3000"),
        ("localhost:8088", "https://gpu.example.com"),
        ("[2001:db8::1]", None),
    ],
)
def test_other_names_and_other_sites_are_not(host: str, origin: str | None) -> None:
    assert not PAGE.admit(host, origin)


def test_without_loopback_only_origins_count() -> None:
    assert not PageNames(["https://gpu.example.com"]).admit("localhost", None)


@pytest.mark.parametrize(
    "text", ["gpu.example.com", "ftp://a", "https://a/path", "https://u@a", "https://", "https://a?b"]
)
def test_anything_but_an_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a scheme and a name"):
        PageNames([text])


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
