"""The pod addresses of one node."""

from collections.abc import Iterator


class PodAddresses:
    """Gives addresses out, those that came back first.

    Args:
        network: the first two or three bytes, e.g. ``10.244`` or ``10.244.1``.
    """

    def __init__(self, network: str) -> None:
        self._free: list[str] = []
        wide = network.count(".") == 1
        hosts = (f"{number // 256}.{number % 256}" for number in range(2, 65534)) if wide else map(str, range(2, 255))
        self._fresh: Iterator[str] = (f"{network}.{host}" for host in hosts)

    def take(self) -> str:
        """An address that no pod of the node has."""
        return self._free.pop(0) if self._free else next(self._fresh)

    def release(self, address: str) -> None:
        """The pod that had it is gone."""
        self._free.append(address)
