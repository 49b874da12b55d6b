"""Figures of boards, with their source, and the share of them below which a rate is too slow.

A data sheet states a peak that no program reaches. So a rate is compared with a share of it (:data:`SHARES`), and with
the other cards of the product on the node. One product was measured: a well H200 reaches 86 % of its memory's figure,
45 % of that of a product of matrices, and 88 % of the PCIe link's. The shares are far below, so that a card of another
product is only found slow when something is wrong with it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.api.nodes.preflights import Measure, write_rate

_TERA, _GIGA = 1e12, 1e9


class BoardFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Peak rates of a board as its data sheet states them.

    Attributes:
        fp32: operations per second with 32-bit floats, without tensor cores.
        memory: bytes per second of its memory.
        nvlink: bytes per second over all NVLinks, both directions together; 0 for none, or with a bridge only.
        links: its NVLinks.
        source: the data sheet.
    """

    fp32: float
    memory: float
    nvlink: float = 0.0
    links: int = 0
    source: str


def _board(teraflops: float, memory_gb: float, source: str, *, nvlink_gb: float = 0.0, links: int = 0) -> BoardFigures:
    return BoardFigures(
        fp32=teraflops * _TERA, memory=memory_gb * _GIGA, nvlink=nvlink_gb * _GIGA, links=links, source=source
    )


_A100, _H100 = "NVIDIA A100 Tensor Core GPU data sheet", "NVIDIA H100 Tensor Core GPU data sheet"
#: By NVML's product name. NVLinks: NVIDIA's pages on NVLink (6 on V100, 12 on A100, 18 on Hopper and Blackwell).
FIGURES: Mapping[str, BoardFigures] = {
    "Tesla T4": _board(8.1, 320, "NVIDIA T4 Tensor Core GPU data sheet"),
    "Tesla V100-SXM2-16GB": _board(15.7, 900, "NVIDIA V100 Tensor Core GPU data sheet", nvlink_gb=300, links=6),
    "NVIDIA A30": _board(10.3, 933, "NVIDIA A30 Tensor Core GPU data sheet"),
    "NVIDIA A100-SXM4-40GB": _board(19.5, 1555, _A100, nvlink_gb=600, links=12),
    "NVIDIA A100-SXM4-80GB": _board(19.5, 2039, _A100, nvlink_gb=600, links=12),
    "NVIDIA A100-PCIE-40GB": _board(19.5, 1555, _A100),
    "NVIDIA A100 80GB PCIe": _board(19.5, 1935, _A100),
    "NVIDIA L40S": _board(91.6, 864, "NVIDIA L40S GPU data sheet"),
    "NVIDIA H100 80GB HBM3": _board(67, 3350, _H100, nvlink_gb=900, links=18),
    "NVIDIA H100 PCIe": _board(51, 2000, _H100),
    "NVIDIA H200": _board(67, 4800, "NVIDIA H200 Tensor Core GPU data sheet", nvlink_gb=900, links=18),
    "NVIDIA B200": _board(75, 8000, "NVIDIA HGX B200 data sheet, an eighth of it", nvlink_gb=1800, links=18),
}
#: The share of its figure below which a rate is too slow, by test. The product's kernel is plain: it has no tensor
#: cores and overlaps nothing. Copies of hundreds of megabytes come close to what a link carries.
SHARES: Mapping[str, float] = {
    "memory_bandwidth": 0.5,
    "product": 0.1,
    "host_to_card": 0.5,
    "card_to_host": 0.5,
    "card_to_card": 0.4,
}
#: The share of the median of the node's cards of one product below which one of them is too slow.
SHARE_OF_MEDIAN = 0.8
#: Source of the figure of a PCIe link.
PCIE_SOURCE = "PCI-SIG data rate of the link's generation and lanes"


def judge(test: str, value: float, figure: float, source: str) -> Measure:
    """The rate with its figure, and a finding if it is below the share of it."""
    finding = ""
    if value < figure * SHARES[test]:
        finding = f"{test} {write_rate(test, value)}: below {SHARES[test]:.0%} of {write_rate(test, figure)} ({source})"
    return Measure(test=test, value=value, figure=figure, source=source if figure else "", finding=finding)


def compare_with_others(measure: Measure, others: Sequence[float]) -> Measure:
    """The measure with a finding if it is far below the median of the node's cards of that product, this one included.

    Two cards have no median that tells which of them is slow.
    """
    rates = sorted(others)
    if measure.finding or len(rates) < 3:
        return measure
    median = rates[len(rates) // 2]
    if measure.value >= median * SHARE_OF_MEDIAN:
        return measure
    text = f"{measure.test} {write_rate(measure.test, measure.value)}: below {SHARE_OF_MEDIAN:.0%} of"
    finding = f"{text} {write_rate(measure.test, median)}, the median of the node's {len(rates)} cards of this product"
    return msgspec.structs.replace(measure, finding=finding)
