"""The release of Kueue is read from its image's tag."""

import pytest

from tessera.kueue.objects import Release, release_of


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("registry.k8s.io/kueue/kueue:v0.18.1", (0, 18)),
        ("mirror.example:5000/kueue:0.19.2-rc.1@sha256:0123", (0, 19)),
        ("mirror.example:5000/kueue", None),
        ("kueue@sha256:0123", None),
        ("us-central1-docker.pkg.dev/k8s-staging-images/kueue/kueue:main", None),
        ("mirror.example:0.19/kueue:main", None),
        ("", None),
    ],
)
def test_the_tag_of_the_image_says_the_release(image: str, release: Release | None) -> None:
    assert release_of(image) == release
