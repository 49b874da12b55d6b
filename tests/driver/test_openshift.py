"""Kernels of next OpenShift releases, read from oc and from a Driver Toolkit."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.driver.kernels import NextKernel, rhcos_version, toolkit_kernel, with_large_pages

IMAGE = "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:" + "5" * 64
RELEASE: dict[str, Any] = {
    "image": "quay.io/openshift-release-dev/ocp-release:4.15.3-x86_64",
    "metadata": {"kind": "cincinnati-metadata-v0", "version": "4.15.3"},
    "displayVersions": {"kubernetes": {"Version": "1.28.7"}, "machine-os": {"Version": "415.92.202403080220-0"}},
    "references": {
        "kind": "ImageStream",
        "spec": {
            "tags": [
                {"name": "cli", "from": {"kind": "DockerImage", "name": "quay.io/x@sha256:1"}},
                {"name": "driver-toolkit", "from": {"kind": "DockerImage", "name": IMAGE}},
            ]
        },
    },
}
TOOLKIT = {"KERNEL_VERSION": "5.14.0-284.55.1.el9_2.x86_64", "RT_KERNEL_VERSION": "", "RHEL_VERSION": "9.2"}


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def test_a_release_names_its_rhcos() -> None:
    assert rhcos_version(as_json(RELEASE)) == "415.92.202403080220-0"


def test_the_toolkit_names_the_kernel() -> None:
    assert toolkit_kernel(as_json(TOOLKIT), "415.92.202403080220-0") == NextKernel(
        os_id="rhcos",
        os_version="4.15",
        kernel="5.14.0-284.55.1.el9_2.x86_64",
        architecture="amd64",
        ostree="415.92.202403080220-0",
    )


def test_since_openshift_4_19_nodes_call_themselves_rhel() -> None:
    found = toolkit_kernel(as_json(TOOLKIT | {"RHEL_VERSION": "9.6"}), "9.6.20250701-0")
    assert (found.os_id, found.os_version, found.ostree) == ("rhel", "9.6", "9.6.20250701-0")
    assert toolkit_kernel(as_json(TOOLKIT)).os_id == "rhel"


def test_a_toolkit_for_arm64_builds_for_large_pages_too() -> None:
    arm = toolkit_kernel(as_json(TOOLKIT | {"KERNEL_VERSION": "5.14.0-284.55.1.el9_2.aarch64"}))
    assert with_large_pages(arm).kernel == "5.14.0-284.55.1.el9_2.aarch64+64k"
    with pytest.raises(ValueError, match="only arm64 has pages of 64 KiB"):
        with_large_pages(toolkit_kernel(as_json(TOOLKIT)))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", as_json({"kind": "List"}), b"[" * 100_000])
def test_what_is_something_else_is_told(data: bytes) -> None:
    for read in (rhcos_version, toolkit_kernel):
        with pytest.raises(ValueError, match=r"^(release|driver-toolkit-release\.json): "):
            read(data)


@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["kind", "spec", "tags", "name", "from", "metadata", "displayVersions", "machine-os"]),
                inner,
            )
        ),
        max_leaves=10,
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    for read in (rhcos_version, toolkit_kernel):
        with contextlib.suppress(ValueError):
            read(as_json(value))
