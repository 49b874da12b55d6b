"""What a model server's page ``/metrics`` says of its load, by one table of names. Pure.

The page is written by a tenant, so it may say anything:

- Only series of the table are read, and of their labels only those that choose a series or a bucket. What a page says
  of other pods, models or namespaces counts for the pod itself, or not at all.
- A value of these series that is no number, not finite, or negative, and a series that is there twice, make the whole
  page unreadable: a wrong load is worse than none.

Sources of the names: Gateway API inference extension, model server protocol (vLLM, SGLang, trtllm-serve, TensorRT-LLM
on Triton); the servers' own documents for requests, time to first token, Triton's pending requests, and TGI.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

#: Series of the table on one page; a server with 16 engines and 30 buckets has 600.
SERIES = 4_096
#: Buckets of the time to first token that are kept; servers have some 25.
BUCKETS = 64
#: The largest value: more requests than a server can have had.
_LARGEST = 1e15


class PageError(Exception):
    """A page that cannot be read; the text says why, in words of ours."""


class Quantity(Enum):
    """What a series is."""

    REQUESTS = "requests that ended well, since the start"
    RUNNING = "requests that are computed"
    WAITING = "requests that wait"
    KV_CACHE = "part of the KV cache in use, 0 to 1"
    TTFT = "buckets of the time to the first token, seconds"


def _plain(quantity: Quantity, *names: str) -> dict[str, tuple[str, Mapping[str, Quantity]]]:
    return {name: ("", {"": quantity}) for name in names}


#: By name of a series: the label that says what it is, empty if the name does, and what each of its values means.
NAMES: Mapping[str, tuple[str, Mapping[str, Quantity]]] = {
    **_plain(
        Quantity.REQUESTS,
        "vllm:request_success_total",
        "sglang:num_requests_total",
        "trtllm_request_success_total",
        "nv_inference_request_success",
        "tgi_request_success",
    ),
    **_plain(
        Quantity.RUNNING,
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "trtllm_num_requests_running",
        "tgi_batch_current_size",
    ),
    **_plain(
        Quantity.WAITING,
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "trtllm_num_requests_waiting",
        "nv_inference_pending_request_count",
        "tgi_queue_size",
    ),
    **_plain(
        Quantity.KV_CACHE,
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "trtllm_kv_cache_utilization",
    ),
    **_plain(
        Quantity.TTFT,
        "vllm:time_to_first_token_seconds_bucket",
        "sglang:time_to_first_token_seconds_bucket",
        "trtllm_time_to_first_token_seconds_bucket",
    ),
    "nv_trt_llm_request_metrics": ("request_type", {"waiting": Quantity.WAITING, "scheduled": Quantity.RUNNING}),
    "nv_trt_llm_kv_cache_block_metrics": ("kv_cache_block_type", {"fraction": Quantity.KV_CACHE}),
}
#: A server that has both names of a quantity means the first: pending requests of Triton are those of its ensemble.
_INSTEAD = {"nv_inference_pending_request_count": "nv_trt_llm_request_metrics"}
#: Lines of the table. Nothing of the patterns is tried twice at one place of a page: a long line costs its length.
_SERIES = re.compile(rf"^({'|'.join(map(re.escape, NAMES))})(?=[{{\s])(.*)$", re.MULTILINE)
_LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*+)="((?:[^"\\]|\\.)*+)"')
_REST = re.compile(r"(?:\{(.*)\})?\s+(\S+)(?:\s+-?[0-9]+)?\s*")


@dataclass(frozen=True)
class PageNumbers:
    """What one page says; None for what it does not have.

    Attributes:
        requests: ended well since the start.
        running, waiting: now.
        kv_cache: part in use, mean of the page's engines.
        first_token: cumulative counts by upper bound in seconds, the last one for all.
    """

    requests: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None
    first_token: Mapping[float, float] = field(default_factory=dict)


def read_page(text: str) -> PageNumbers:
    """Reads a page in Prometheus's text format.

    Raises:
        PageError: it says something that cannot be.
    """
    found: dict[Quantity, list[float]] = {}
    buckets: dict[float, float] = {}
    seen: set[tuple[str, str]] = set()
    for name, labels, value in _series(text):
        if (name, labels) in seen:
            raise PageError(f"{name} has a series twice")
        seen.add((name, labels))
        if len(seen) > SERIES:
            raise PageError(f"more than {SERIES:,} series of requests")
        quantity = _quantity(name, labels)
        if quantity is Quantity.TTFT:
            bound = _number(name, dict(_LABEL.findall(labels)).get("le", ""), infinite=True)
            buckets[bound] = buckets.get(bound, 0.0) + value
        elif quantity is not None:
            found.setdefault(quantity, []).append(value)
    if len(buckets) > BUCKETS:
        raise PageError(f"more than {BUCKETS} buckets of the time to first token")
    caches = found.pop(Quantity.KV_CACHE, None)
    if max(map(sum, [buckets.values(), *found.values()])) > _LARGEST:
        raise PageError(f"the series of a quantity are more than {_LARGEST:g} together")
    if caches and max(caches) > 1:
        raise PageError("more than all of the KV cache is in use")
    return PageNumbers(
        requests=_total(found.get(Quantity.REQUESTS)),
        running=_total(found.get(Quantity.RUNNING)),
        waiting=_total(found.get(Quantity.WAITING)),
        kv_cache=sum(caches) / len(caches) if caches else None,
        first_token=dict(sorted(buckets.items())),
    )


def _series(text: str) -> Iterator[tuple[str, str, float]]:
    """Name, labels and value of each series of the table."""
    lines = _SERIES.findall(text)
    present = {name for name, _ in lines}
    for name, rest in lines:
        if _INSTEAD.get(name) in present:
            continue
        parsed = _REST.fullmatch(rest)
        if parsed is None:
            raise PageError(f"a line of {name} is none")
        yield name, parsed[1] or "", _number(name, parsed[2])


def _quantity(name: str, labels: str) -> Quantity | None:
    label, meanings = NAMES[name]
    return meanings.get(dict(_LABEL.findall(labels)).get(label, "") if label else "")


def _number(name: str, text: str, *, infinite: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise PageError(f"{name} has a value that is no number") from None
    if infinite and value == float("inf"):
        return value
    if not 0 <= value <= _LARGEST:
        raise PageError(f"{name} has a value that is not from 0 to {_LARGEST:g}")
    return value


def _total(values: Sequence[float] | None) -> float | None:
    return None if values is None else sum(values)
