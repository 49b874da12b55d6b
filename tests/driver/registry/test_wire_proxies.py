"""The proxy of each URL."""

import pytest

from tessera.driver.registry.wire import proxy_for

PROXY = "http://proxy.test:3128"


@pytest.mark.parametrize(
    ("url", "exceptions", "wanted"),
    [
        ("https://nvcr.io/v2/", "", PROXY),
        ("https://nvcr.io/v2/", "*", ""),
        ("https://nvcr.io/v2/", "nvcr.io", ""),
        ("https://cdn.nvcr.io/v2/", "nvcr.io", ""),
        ("https://cdn.nvcr.io/v2/", ".nvcr.io", ""),
        ("https://nvcr.io/v2/", ".nvcr.io", PROXY),
        ("https://othernvcr.io/v2/", "nvcr.io", PROXY),
        ("https://nvcr.io/v2/", "quay.io, NVCR.io", ""),
        ("https://nvcr.io/v2/", "nvcr.io:443", ""),
        ("https://nvcr.io:5000/v2/", "nvcr.io:443", PROXY),
        ("https://10.1.2.3:5000/v2/", "10.0.0.0/8,.svc", ""),
        ("https://11.1.2.3/v2/", "10.0.0.0/8", PROXY),
        ("https://10.1.2.3:5000/v2/", "10.1.2.3:5000", ""),
        ("https://[fd00::1]/v2/", "fd00::/8", ""),
        ("https://registry.tools.svc/v2/", "10.0.0.0/8,.svc", ""),
        ("https://127.0.0.1:5000/v2/", "", ""),
        ("https://localhost/v2/", "", ""),
        ("http://nvcr.io/v2/", "", ""),
    ],
)
def test_exceptions_are_read_as_clusters_write_them(url: str, exceptions: str, wanted: str) -> None:
    assert proxy_for(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": exceptions}) == wanted


def test_lower_case_and_a_missing_scheme_are_taken() -> None:
    assert proxy_for("http://nvcr.io/", {"http_proxy": "proxy.test:3128"}) == PROXY
