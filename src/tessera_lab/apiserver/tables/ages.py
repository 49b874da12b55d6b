"""Durations as kubectl prints them: ``5s``, ``3m20s``, ``2d4h``.

The steps are those of ``k8s.io/apimachinery/pkg/util/duration.HumanDuration``.
"""

from typing import Any

from tessera.clock import parse_rfc3339


def format_duration(seconds: float) -> str:
    """A duration with the two units that matter at its size."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes, hours = whole // 60, whole // 3600
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 24 * 8:
        return _two(hours // 24, "d", hours % 24, "h")
    if hours < 24 * 365 * 2:
        return f"{hours // 24}d"
    if hours < 24 * 365 * 8:
        return _two(hours // 24 // 365, "y", hours // 24 % 365, "d")
    return f"{hours // 24 // 365}y"


def _two(large: int, unit: str, small: int, below: str) -> str:
    return f"{large}{unit}{small}{below}" if small else f"{large}{unit}"


def format_age(timestamp: Any, now: float) -> str:
    """Time from a ``metav1.Time`` to ``now`` (seconds since 1970); ``<unknown>`` when there is none."""
    if not timestamp:
        return "<unknown>"
    try:
        return format_duration(now - parse_rfc3339(timestamp))
    except (ValueError, TypeError):
        return "<invalid>"
