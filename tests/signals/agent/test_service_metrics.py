"""Pages of model servers: five dialects by one table, and pages that lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.signals.agent.service_metrics import SERIES, PageError, PageNumbers, read_page
from tessera.signals.agent.service_pages import PAGE_BYTES

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="opt"} 3.0
vllm:num_requests_running{engine="1",model_name="opt"} 2.0
vllm:num_requests_waiting{engine="0",model_name="opt"} 7.0
vllm:num_requests_waiting{engine="1",model_name="opt"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="opt"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="opt"} 0.25
vllm:request_success_total{engine="0",finished_reason="stop",model_name="opt"} 90.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="opt"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="opt"} 40.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="opt"} 100.0
vllm:e2e_request_latency_seconds_bucket{le="0.3"} NaN
process_open_fds 44.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 4
sglang:num_queue_reqs{model_name="m"} 1
sglang:token_usage{model_name="m"} 0.28
sglang:num_requests_total{model_name="m"} 812 1700000000000
"""
TRTLLM = """\
trtllm_num_requests_running{engine_type="trtllm"} 2.0
trtllm_num_requests_waiting{engine_type="trtllm"} 5.0
trtllm_kv_cache_utilization{engine_type="trtllm"} 0.4
trtllm_request_success_total{finished_reason="end_id"} 30.0
"""
TRITON = """\
nv_inference_request_success{model="ensemble",version="1"} 9
nv_inference_pending_request_count{model="ensemble",version="1"} 3
"""
TRITON_LLM = (
    TRITON
    + """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 99
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
"""
)
TGI = 'tgi_queue_size 2\ntgi_batch_current_size 8\ntgi_request_success{kind="generate"} 77\n'


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (VLLM, PageNumbers(100.0, 5.0, 7.0, 0.375, {0.1: 40.0, float("inf"): 100.0})),
        (SGLANG, PageNumbers(812.0, 4.0, 1.0, 0.28)),
        (TRTLLM, PageNumbers(30.0, 2.0, 5.0, 0.4)),
        (TRITON, PageNumbers(9.0, None, 3.0)),
        (TRITON_LLM, PageNumbers(9.0, 2.0, 6.0, 0.1)),
        (TGI, PageNumbers(77.0, 8.0, 2.0)),
        ("vllm:gpu_cache_usage_perc 0.5\n", PageNumbers(kv_cache=0.5)),
        ("", PageNumbers()),
        ("# nothing\nup 1\n", PageNumbers()),
    ],
)
def test_each_server_says_its_load(page: str, wanted: PageNumbers) -> None:
    assert read_page(page) == wanted


def test_names_of_other_pods_count_for_the_pod_itself() -> None:
    page = 'vllm:num_requests_waiting{namespace="team-b",pod="other",model_name="x"} 4\n'
    assert read_page(page).waiting == 4.0


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("vllm:num_requests_waiting NaN\n", "not from 0"),
        ("vllm:num_requests_waiting -1\n", "not from 0"),
        ("vllm:num_requests_waiting +Inf\n", "not from 0"),
        ("vllm:num_requests_waiting 1e300\n", "not from 0"),
        ("vllm:num_requests_waiting many\n", "no number"),
        ("vllm:num_requests_waiting\n", "is none"),
        ('vllm:num_requests_waiting{a="b" 1\n', "is none"),
        ("tgi_queue_size 1\ntgi_queue_size 2\n", "twice"),
        ('vllm:num_requests_waiting{e="0"} 1e15\nvllm:num_requests_waiting{e="1"} 1e15\n', "together"),
        ("vllm:kv_cache_usage_perc 1.5\n", "more than all"),
        ('vllm:time_to_first_token_seconds_bucket{le="soon"} 1\n', "no number"),
        ("\n".join(f'vllm:num_requests_waiting{{engine="{each}"}} 1' for each in range(SERIES + 1)), "series"),
        ("\n".join(f'sglang:time_to_first_token_seconds_bucket{{le="{each}"}} 1' for each in range(99)), "buckets"),
    ],
)
def test_a_page_that_cannot_be_true_is_no_page(page: str, text: str) -> None:
    with pytest.raises(PageError, match=text):
        read_page(page)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("nv_trt_llm_request_metrics{" + "a" * PAGE_BYTES + "} 1", id="a label without an end"),
        pytest.param("nv_trt_llm_request_metrics{" + 'a="' * (PAGE_BYTES // 3) + "} 1", id="labels without an end"),
        pytest.param("a\n" * (PAGE_BYTES // 2), id="lines of others"),
    ],
)
def test_a_line_as_long_as_a_page_costs_its_length(line: str) -> None:
    """With a pattern that is tried at each place anew, the first would take most of an hour, in which no agent acts."""
    assert read_page(f"{line}\nvllm:num_requests_waiting 4\n").waiting == 4.0


def test_only_ends_of_lines_end_a_line() -> None:
    assert read_page('vllm:num_requests_waiting{model_name="a\u2028b\x0bc"} 4\r\n').waiting == 4.0


@given(st.text())
def test_any_text_is_numbers_or_an_error(text: str) -> None:
    for page in (text, f"vllm:num_requests_waiting{text}", f"vllm:num_requests_waiting{{{text}}} 1"):
        try:
            found = read_page(page)
        except PageError:
            continue
        assert found.waiting is None or found.waiting >= 0
