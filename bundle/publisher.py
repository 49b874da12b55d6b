"""What only the publisher of a bundle knows. The files in the tree have the defaults, and nobody publishes these."""

from typing import NamedTuple

import click

from tessera import __version__
from tessera.doctor.manifests import images, install_manifests


def _image() -> str:
    (found,) = set(images(install_manifests()))
    return found


class Publisher(NamedTuple):
    """Settings of a release.

    Attributes:
        image: Tessera's image; by digest for a release.
        provider: name of the publisher.
        repository: address of the sources; empty for none.
        maintainers: names and mail addresses.
        links: names and addresses.
        replaces: name of the version before in the channel; empty for none.
        version: the version.
        channel: the channel. A first version is a candidate.
        created: time of the release, RFC 3339.
    """

    image: str = _image()
    provider: str = "Tessera"
    repository: str = ""
    maintainers: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    replaces: str = ""
    version: str = __version__
    channel: str = "candidate"
    created: str = "2026-11-24T00:00:00Z"


def parse_pair(text: str) -> tuple[str, str]:
    """Reads NAME=VALUE.

    Raises:
        click.BadParameter: the text has another form.
    """
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f'"{text}" does not have the form NAME=VALUE')
    return name, value
