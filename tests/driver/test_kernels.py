"""Lists of kernels that are to come: what a line means, what is none, and which kernel is newer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.driver.kernels import (
    NextKernel,
    newer_kernels,
    newest_kernels,
    parse_kernel,
    parse_kernel_lists,
    parse_system,
)
from tessera.driver.limits import KERNEL_LIST, NEXT_KERNELS


@pytest.mark.parametrize(
    ("name", "line", "meant"),
    [
        (
            "ubuntu22.04",
            "5.15.0-119-generic",
            NextKernel(os_id="ubuntu", os_version="22.04", kernel="5.15.0-119-generic"),
        ),
        (
            "ubuntu24.04",
            "6.8.0-1015-nvidia-64k  arm64",
            NextKernel(os_id="ubuntu", os_version="24.04", kernel="6.8.0-1015-nvidia-64k", architecture="arm64"),
        ),
        (
            "rhcos4.15",
            "5.14.0-284.55.1.el9_2.x86_64 415.92.202403191241-0",
            NextKernel(
                os_id="rhcos",
                os_version="4.15",
                kernel="5.14.0-284.55.1.el9_2.x86_64",
                architecture="amd64",
                ostree="415.92.202403191241-0",
            ),
        ),
        (
            "rhel9.4",
            "5.14.0-427.40.1.el9_4.aarch64+64k",
            NextKernel(
                os_id="rhel", os_version="9.4", kernel="5.14.0-427.40.1.el9_4.aarch64+64k", architecture="arm64"
            ),
        ),
    ],
)
def test_a_line_names_a_kernel_of_a_system(name: str, line: str, meant: NextKernel) -> None:
    assert parse_kernel(name, line) == meant


def test_the_pool_of_a_kernel_has_its_page_size() -> None:
    assert parse_kernel("rhel9.4", "5.14.0-427.40.1.el9_4.aarch64+64k").pool("amd64").page_kib == 64
    assert parse_kernel("ubuntu22.04", "5.15.0-119-generic").pool("arm64").architecture == "arm64"


def test_remarks_and_empty_lines_are_nothing() -> None:
    kernels, problems = parse_kernel_lists({"ubuntu22.04": "# next week\n\n5.15.0-119-generic # HWE\n"})
    assert [each.kernel for each in kernels] == ["5.15.0-119-generic"]
    assert problems == ()


def test_a_line_that_is_none_is_told_and_the_others_count() -> None:
    kernels, problems = parse_kernel_lists(
        {"ubuntu22.04": "latest\n5.15.0-119-generic riscv\n5.15.0-120-generic", "Windows": "10"}
    )
    assert [each.kernel for each in kernels] == ["5.15.0-120-generic"]
    for fact in ("operating system 'Windows'", "ID and VERSION_ID of os-release"):
        assert fact in problems[0]
    for fact in ("ubuntu22.04", "kernel 'latest'", "uname -r"):
        assert fact in problems[1]
    for fact in ("ubuntu22.04", "'riscv'", "kernel 5.15.0-119-generic", "amd64 or arm64"):
        assert fact in problems[2]


def test_a_list_without_end_is_bounded() -> None:
    kernels, problems = parse_kernel_lists(
        {"ubuntu22.04": "\n".join(f"5.15.0-{number}-generic" for number in range(9000))}
    )
    assert len(kernels) == NEXT_KERNELS
    assert f"characters; {KERNEL_LIST} are read" in problems[0]


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=200), max_size=4))
def test_whatever_is_written_is_read_or_told(data: dict[str, str]) -> None:
    kernels, problems = parse_kernel_lists(data)
    assert all(each.kernel[0].isdigit() for each in kernels)
    assert all(problems)


@pytest.mark.parametrize("text", ["ubuntu", "22.04", "", "ubuntu 22.04", "u" * 100])
def test_a_system_without_a_version_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="operating system"):
        parse_system(text)


def test_numbers_and_not_letters_order_kernels() -> None:
    kernels = ["5.15.0-69-generic", "5.15.0-119-generic", "5.4.0-200-generic"]
    assert newest_kernels(kernels, 2) == ["5.15.0-119-generic", "5.15.0-69-generic"]
    assert newer_kernels(kernels, ["5.15.0-69-generic"]) == ["5.15.0-119-generic"]
    assert newer_kernels(kernels, []) == newest_kernels(kernels, 3)
