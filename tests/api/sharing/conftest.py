"""Cards to offer."""

from collections.abc import Callable

import pytest

from tessera.api.sharing.devices import GpuDescription, MigDevice

MakeCards = Callable[..., list[GpuDescription]]


@pytest.fixture
def cards() -> MakeCards:
    """Makes ``cards(4)`` A100s; ``mig={0: ["1g.5gb", ...]}`` turns MIG on where a card is named."""

    def make(
        count: int, mig: dict[int, list[str]] | None = None, product: str = "NVIDIA A100-SXM4-40GB", cc: str = "8.0"
    ) -> list[GpuDescription]:
        major, minor = map(int, cc.split("."))
        cut = mig or {}
        return [
            GpuDescription(
                uuid=f"GPU-{index:08d}-0000-0000-0000-000000000000",
                index=index,
                product=product,
                compute_capability=(major, minor),
                mig_enabled=index in cut,
                mig_devices=tuple(
                    MigDevice(
                        uuid=f"MIG-{index:08d}-0000-0000-0000-{number:012d}",
                        index=number,
                        profile=profile,
                        gi_id=7 + number,
                        ci_id=0,
                    )
                    for number, profile in enumerate(cut.get(index, ()))
                ),
            )
            for index in range(count)
        ]

    return make
