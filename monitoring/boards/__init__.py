"""The boards for Grafana."""

from monitoring.boards.cards import CARD, FLEET
from monitoring.boards.cluster import DRIVERS, TIME_TO_GPU, WAITING
from monitoring.boards.users import NAMESPACE, SHARING

#: All boards.
BOARDS = (FLEET, CARD, SHARING, NAMESPACE, WAITING, TIME_TO_GPU, DRIVERS)

__all__ = ["BOARDS"]
