"""The image's bill of materials in CycloneDX: each package of Debian, each library, and Tessera itself.

It is read from the image's own files, the records of dpkg and of the wheels, not from what was asked for. The same
trees make the same document: its serial number follows from version, commit and platform; its time is the commit's.
"""

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release.image.labels import Origin
from release.image.root import SITE
from release.platforms import Platform


def bill_of_materials(trees: Path, platform: Platform, origin: Origin) -> str:
    """The document of one platform's image, as JSON of CycloneDX 1.6.

    Args:
        trees: the folder of the trees ``system``, ``libraries`` and ``application``.
        platform: the image's.
        origin: of the image.
    """
    image = Component(
        name="tessera",
        version=origin.version,
        type=ComponentType.CONTAINER,
        bom_ref=f"image-{platform.architecture}",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"tessera {origin.version} {origin.revision} {platform}"),
        components=[*_debian(trees / "system"), *_wheels(trees)],
    )
    bom.metadata.timestamp = datetime.fromtimestamp(origin.seconds, UTC)
    bom.metadata.component = image
    bom.register_dependency(image, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def _debian(system: Path) -> Iterator[Component]:
    for record in sorted((system / "var/lib/dpkg/status.d").iterdir()):
        fields = _fields(record)
        qualifiers = {"arch": fields["Architecture"], "distro": "debian-12"}
        url = PackageURL("deb", "debian", fields["Package"], fields["Version"], qualifiers)
        yield _component(url, ComponentType.LIBRARY, ())


def _wheels(trees: Path) -> Iterator[Component]:
    for tree in ("libraries", "application"):
        for record in sorted((trees / tree / SITE).glob("*.dist-info/METADATA")):
            fields = _fields(record)
            url = PackageURL("pypi", None, fields["Name"].lower().replace("_", "-"), fields["Version"])
            kind = ComponentType.APPLICATION if tree == "application" else ComponentType.LIBRARY
            stated = fields["License-Expression"] or fields["License"]
            yield _component(url, kind, [LicenseFactory().make_from_string(stated)] if _short(stated) else ())


def _component(url: PackageURL, kind: ComponentType, licenses: Sequence[License]) -> Component:
    return Component(
        name=url.name, version=url.version, purl=url, bom_ref=url.to_string(), type=kind, licenses=licenses
    )


def _short(stated: str | None) -> bool:
    """Whether a licence is a name: some wheels have the licence's whole text there."""
    return bool(stated) and "\n" not in str(stated) and len(str(stated)) < 100


def _fields(record: Path) -> Message:
    return HeaderParser().parsestr(record.read_text(encoding="utf-8"))
