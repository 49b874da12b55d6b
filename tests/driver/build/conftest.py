"""Orders, and Jobs as the API server tells them, that the stories of builds share."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.driver.build.orders import BuildOrder, make_order, target_reference
from tessera.driver.driver_sets import PoolKey

#: A registry's repository that the tests build into.
REPOSITORY = "registry.local/nvidia/driver"


def pool_of(os_name: str, kernel: str, architecture: str = "amd64", **rest: Any) -> PoolKey:
    os_id, version = os_name.split(" ")
    return PoolKey(os_id=os_id, os_version=version, kernel=kernel, architecture=architecture, **rest)


JAMMY = pool_of("ubuntu 22.04", "5.15.0-69-generic")
RHCOS = pool_of("rhcos 4.15", "5.14.0-284.54.1.el9_2.x86_64", ostree="415.92.202402201450-0")
RHCOS_64K = pool_of(
    "rhcos 4.15", "5.14.0-284.54.1.el9_2.aarch64+64k", "arm64", page_kib=64, ostree="415.92.202402201450-0"
)


@pytest.fixture
def jammy() -> PoolKey:
    return JAMMY


@pytest.fixture
def rhcos() -> PoolKey:
    return RHCOS


@pytest.fixture
def rhcos_64k() -> PoolKey:
    return RHCOS_64K


@pytest.fixture
def ordered() -> Callable[..., BuildOrder]:
    """An order for a pool; Ubuntu's if none is named."""

    def make(pool: PoolKey = JAMMY, version: str = "525.125.06", **rest: Any) -> BuildOrder:
        return make_order(pool, version=version, target=target_reference(REPOSITORY, version, pool), **rest)

    return make
