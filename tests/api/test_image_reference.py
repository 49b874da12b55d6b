"""Names of images, read and bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.image_reference import ReferenceFormatError, parse, parse_repository

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nvcr.io/nvidia/driver:525-ubuntu22.04", ("nvcr.io", "nvidia/driver", "525-ubuntu22.04", "", "nvcr.io")),
        ("docker.io/fifofonix/driver:1", ("docker.io", "fifofonix/driver", "1", "", "registry-1.docker.io")),
        ("fifofonix/driver:1", ("docker.io", "fifofonix/driver", "1", "", "registry-1.docker.io")),
        ("ubuntu", ("docker.io", "library/ubuntu", "latest", "", "registry-1.docker.io")),
        ("index.docker.io/ubuntu:22.04", ("docker.io", "library/ubuntu", "22.04", "", "registry-1.docker.io")),
        ("localhost/a", ("localhost", "a", "latest", "", "localhost")),
        ("localhost:5000/a:1", ("localhost:5000", "a", "1", "", "localhost:5000")),
        ("[fd00::1]:5000/a/b:1", ("[fd00::1]:5000", "a/b", "1", "", "[fd00::1]:5000")),
        (f"quay.io/a/b@{DIGEST}", ("quay.io", "a/b", "", DIGEST, "quay.io")),
        (f"quay.io/a/b:1@{DIGEST}", ("quay.io", "a/b", "1", DIGEST, "quay.io")),
        ("docker://Quay.IO/a_b/c--d:X", ("quay.io", "a_b/c--d", "X", "", "quay.io")),
    ],
)
def test_references_as_people_write_them(text: str, wanted: tuple[str, ...]) -> None:
    found = parse(text)
    assert (found.registry, found.path, found.tag, found.digest, found.host) == wanted
    assert parse(found.text) == found


def test_a_repository_has_no_tag_of_its_own() -> None:
    found = parse_repository("nvcr.io/nvidia/driver")
    assert (found.text, found.identifier) == ("nvcr.io/nvidia/driver", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "its repository '' is not"),
        ("nvcr.io/nvidia/Driver:1", "its repository 'nvidia/Driver' is not lower-case"),
        ("nvcr.io/../secret:1", "its repository '../secret'"),
        ("nvcr.io/a/b:", "its tag '' is not"),
        ("nvcr.io/a/b:x/y", "its tag 'x/y' is not"),
        ("nvcr.io/a/b:" + "x" * 129, "its tag"),
        ("nvcr.io/a/b:1?n=2", "its tag '1?n=2'"),
        ("nvcr.io/a/b:1 2", "its tag"),
        ("nvcr.io/a/b@sha256:zz", "its digest 'sha256:zz' is not"),
        ("nvcr.io/a/b@", "its digest ''"),
        ("user:pw@nvcr.io/a", "its digest 'nvcr.io/a'"),
        ("bad_host.io:x/a", "its registry 'bad_host.io:x'"),
        ("a" * 600, "600 characters"),
        ("nvcr.io/" + "a" * 300, "its repository"),
    ],
)
def test_what_is_none_is_told_with_the_part_and_the_rule(text: str, words: str) -> None:
    with pytest.raises(ReferenceFormatError) as told:
        parse(text)
    assert words in str(told.value)


@given(st.text(max_size=60))
def test_whatever_is_taken_can_stand_in_a_url(text: str) -> None:
    try:
        found = parse(text)
    except ReferenceFormatError:
        return
    url = f"{found.host}/v2/{found.path}/manifests/{found.identifier}"
    assert url.isascii()
    assert not set(url) & set(" ?#%\\@")
    assert ".." not in found.path.split("/")
