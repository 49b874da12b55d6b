"""Scores the forecasts of a trace, and those of two simple estimates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.eta.replay import Forecast, replay
from bench.eta.traces import SYNTHETIC, openb

from tessera.forecast.calibration import pinball


def _loss(rows: Sequence[Forecast], ends: Callable[[Forecast], tuple[float, float]]) -> float:
    total = 0.0
    for row in rows:
        assert row.outcome is not None
        p50, p90 = ends(row)
        total += pinball(row.outcome, p50, 0.5) + pinball(row.outcome, p90, 0.9)
    return total / (2 * len(rows)) if rows else 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """A line of the table."""

    trace: str
    reservations: bool
    cards: int
    pods: int
    waited: int
    known: float
    before_p50: float
    before_p90: float
    loss: float
    loss_mean: float
    loss_quantiles: float
    reason: float
    bases: dict[str, int]


def measure(trace: str, seed: int, folder: Path | None, reserve_after: float | None) -> Figures:
    """Replays one trace and sums up."""
    jobs, cards = openb(folder) if folder is not None else SYNTHETIC[trace](seed)
    found = replay(jobs, cards, reserve_after)
    rows = found.forecasts
    compared = [row for row in rows if row.mean is not None and row.quantiles is not None]
    bases: dict[str, int] = {}
    for row in rows:
        bases[row.basis] = bases.get(row.basis, 0) + 1
    return Figures(
        trace=trace,
        reservations=reserve_after is not None,
        cards=cards,
        pods=len(jobs),
        waited=found.waited,
        known=len(rows) / (len(rows) + found.unknown) if rows else 0.0,
        before_p50=sum((row.outcome or 0.0) <= row.p50 for row in rows) / max(1, len(rows)),
        before_p90=sum((row.outcome or 0.0) <= row.p90 for row in rows) / max(1, len(rows)),
        loss=_loss(compared, lambda row: (row.p50, row.p90)),
        loss_mean=_loss(compared, lambda row: (row.mean or 0.0, row.mean or 0.0)),
        loss_quantiles=_loss(compared, lambda row: row.quantiles or (0.0, 0.0)),
        reason=found.right / found.tested if found.tested else 0.0,
        bases=bases,
    )
