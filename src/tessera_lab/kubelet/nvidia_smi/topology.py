"""``nvidia-smi topo -m``: how the cards that are seen are joined, by the rules and in the text of ``tessera topo``."""

from collections.abc import Sequence
from itertools import combinations

from tessera.agent.inventory.card_topology import CardLinks, PcieLevel, matrix_of, topology_of
from tessera.explain.topology_text import matrix_text
from tessera.nvml.interface import Nvml
from tessera_lab.kubelet.nvidia_smi.cards import ShownCard


def draw_topology(nvml: Nvml, cards: Sequence[ShownCard], now: float) -> str:
    """The matrix of these cards, which are numbered anew."""
    del now
    seen = [card.gpu for card in cards]
    links = [CardLinks(uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id, links=tuple(nvml.nvlinks(gpu.uuid))) for gpu in seen]
    pairs = combinations([gpu.uuid for gpu in seen], 2)
    meetings = {pair: PcieLevel(nvml.common_ancestor(*pair)) for pair in pairs}
    places = {str(gpu.uuid): nvml.place(gpu.uuid) for gpu in seen}
    return matrix_text(matrix_of(topology_of(links, meetings), places, nvml.network_cards(), seen), visible=True)
