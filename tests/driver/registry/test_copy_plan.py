"""Copies between registries: images, names, commands."""

import msgspec
import pytest

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery
from tessera.driver.registry.client import Platform, RegistryImage
from tessera.driver.registry.copying import NeededImage, Skopeo, TargetState, plan_copies, required_copy
from tessera.gpu_operator.driver_policy import ImageSource

UBUNTU = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
ARM = msgspec.structs.replace(UBUNTU, architecture="arm64")
FEDORA = PoolKey(os_id="fedora", os_version="35", kernel="5.16.13-200.fc35.x86_64", architecture="amd64")
CERN = "510.47.03-fedora35-5.16.13-200.fc35.x86_64"
INDEX, AMD, ARMS = (f"sha256:{each * 64}" for each in "0ab")
BOTH = (Platform("amd64"), Platform("arm64"))


def needed(
    pool: PoolKey = UBUNTU,
    reference: str = "nvcr.io/nvidia/driver:525-ubuntu22.04",
    *,
    top: str = INDEX,
    digest: str = AMD,
    version: str = "525",
) -> NeededImage:
    source = ImageSource(repository="nvcr.io/nvidia", image="driver", version=version)
    query = ImageQuery(source=source, pool=pool, kind=ImageKind.BUILDER)
    found = RegistryImage(top=top, digest=digest, size_bytes=7, platforms=BOTH if top == INDEX else BOTH[:1])
    return NeededImage(query=query, reference=reference, found=found)


def test_an_image_keeps_its_tag_and_is_copied_by_digest_for_its_architecture() -> None:
    (copy,) = plan_copies([needed()], "registry.local/nvidia/")
    assert (copy.source.text, copy.target.text) == (
        "nvcr.io/nvidia/driver:525-ubuntu22.04",
        "registry.local/nvidia/driver:525-ubuntu22.04",
    )
    assert (copy.digest, copy.architectures, copy.whole) == (AMD, ("amd64",), False)


def test_two_architectures_of_one_tag_are_copied_as_a_whole() -> None:
    (copy,) = plan_copies([needed(), needed(ARM, digest=ARMS)], "r.local/x")
    assert (copy.digest, copy.architectures, copy.whole) == (INDEX, ("amd64", "arm64"), True)


def test_all_platforms_are_copied_where_asked_and_an_image_alone_has_but_one() -> None:
    (index,) = plan_copies([needed()], "r.local/x", whole=True)
    (alone,) = plan_copies([needed(top=AMD)], "r.local/x", whole=True)
    assert (index.digest, index.whole) == (INDEX, True)
    assert (alone.digest, alone.whole) == (AMD, False)


def test_the_forks_image_gets_the_name_that_the_seed_gives_it() -> None:
    image = needed(FEDORA, f"docker.io/fifofonix/driver:{CERN}", version=CERN)
    (copy,) = plan_copies([image], "yourregistry/yourproject")
    assert copy.target.text == f"docker.io/yourregistry/yourproject/driver:{CERN}-fedora35"
    (copy,) = plan_copies([image], "yourregistry.cern.ch/yourproject")
    assert copy.target.text == f"yourregistry.cern.ch/yourproject/driver:{CERN}-fedora35"


def test_a_digest_keeps_being_one() -> None:
    image = needed(reference=f"nvcr.io/nvidia/driver@{INDEX}", version=INDEX)
    (copy,) = plan_copies([image], "r.local/x")
    assert (copy.target.text, copy.digest, copy.whole) == (f"r.local/x/driver@{INDEX}", INDEX, True)


@pytest.mark.parametrize(
    ("standing", "digest"),
    [
        (TargetState.SAME, None),
        (TargetState.NOTHING, AMD),
        (TargetState.OTHER, AMD),
        (TargetState.OTHER_ARCHITECTURES, INDEX),
    ],
)
def test_what_is_there_decides_what_is_due(standing: TargetState, digest: str | None) -> None:
    (copy,) = plan_copies([needed()], "r.local/x")
    found = required_copy(copy, standing)
    assert (found and found.digest) == digest
    assert found is None or found.whole is (digest == INDEX)


def test_an_image_alone_takes_no_tag_from_another_architecture() -> None:
    (copy,) = plan_copies([needed(top=AMD)], "r.local/x")
    with pytest.raises(ValueError, match="would take it away from them"):
        required_copy(copy, TargetState.OTHER_ARCHITECTURES)


def test_commands_can_be_typed_as_they_are_shown() -> None:
    (copy,) = plan_copies([needed()], "r.local:5000/x")
    skopeo = Skopeo(authfile="/a b/auth.json", authority="/etc/ca.pem", plain=("r.local:5000",))
    assert skopeo.command_line(copy) == (
        "SSL_CERT_FILE=/etc/ca.pem skopeo copy --retry-times=3 --preserve-digests '--authfile=/a b/auth.json' "
        f"--dest-tls-verify=false docker://nvcr.io/nvidia/driver@{AMD} "
        "docker://r.local:5000/x/driver:525-ubuntu22.04"
    )
    whole = Skopeo().command_line(plan_copies([needed()], "r.local/x", whole=True)[0])
    assert whole.startswith("skopeo copy --retry-times=3 --preserve-digests --all docker://")
