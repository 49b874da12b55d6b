"""The ways in to a scaler: their queries answer in promtool, with the labels that vLLM and Tessera have."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "services"
VLLM = {
    f'vllm:num_requests_{kind}{{namespace="{namespace}",pod="{pod}",engine="0",model_name="opt"}}': value
    for namespace, pod, kind, value in (
        ("default", "a", "running", 3),
        ("default", "a", "waiting", 4),
        ("default", "b", "running", 5),
        ("default", "b", "waiting", 0),
        ("other", "c", "running", 90),
        ("other", "c", "waiting", 9),
    )
}
OWNER = 'namespace="default",kind="Deployment",name="vllm"'
SIGNALS = {
    f"tessera_service_{metric}{{{OWNER}}}": value for metric, value in (("load", 90), ("replicas", 2), ("room", 3))
}


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def answers(folder: Path, given: dict[str, int], wanted: dict[str, dict[str, float]], groups: Any = ()) -> None:
    """Asserts with promtool that each query has these samples, by their labels."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": list(groups)}), encoding="utf-8")
    series = [{"series": name, "values": f"{value}+0x10"} for name, value in given.items()]
    expected = [
        {
            "expr": query,
            "eval_time": "5m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
        }
        for query, samples in wanted.items()
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    body = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
    program = shutil.which("promtool")
    assert program, "promtool is needed: scripts/need-debian .venv/tools promtool"
    done = subprocess.run([program, "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_add_up_a_model_of_a_namespace(tmp_path: Path) -> None:
    groups = read("vllm-rules.yaml")["spec"]["groups"]
    record = "model:vllm_requests:sum"
    totals = {("default", 12), ("other", 99)}
    samples = {f'{record}{{model_name="opt",namespace="{name}"}}': float(total) for name, total in totals}
    answers(tmp_path, VLLM, {record: samples}, groups)


def test_the_adapter_asks_for_the_model_of_the_scalers_namespace(tmp_path: Path) -> None:
    (rule,) = read("prometheus-adapter.yaml")["rules"]["external"]
    assert rule["resources"]["overrides"]["namespace"]["resource"] == "namespace"
    series = re.fullmatch(r"([\w:]+)\{.*\}", rule["seriesQuery"])
    assert series is not None
    query = rule["metricsQuery"].replace("<<.Series>>", series[1])
    query = query.replace("<<.LabelMatchers>>", 'namespace="default",model_name="opt"')
    answers(tmp_path, VLLM, {query: {'{model_name="opt"}': 12.0}}, read("vllm-rules.yaml")["spec"]["groups"])


def test_keda_bounds_the_load_by_what_fits_and_takes_nothing_for_zero(tmp_path: Path) -> None:
    spec = read("keda.yaml")["spec"]
    triggers = {each["name"]: each["metadata"] for each in spec["triggers"]}
    assert {each["ignoreNullValues"] for each in triggers.values()} == {"false"}
    values = {"load": 90.0, "replicas": 2.0, "room": 3.0}
    answers(tmp_path, SIGNALS, {triggers[name]["query"]: {"{}": value} for name, value in values.items()})
    modifiers = spec["advanced"]["scalingModifiers"]
    formula = modifiers["formula"]
    assert set(re.findall("[a-z]+", formula)) - {"min"} == set(triggers)
    assert eval(formula, {"min": min}, values) == 80.0
    assert triggers["load"]["threshold"] == modifiers["target"] == "16"


def test_the_scalers_wait_as_long_and_bound_by_their_own_target() -> None:
    scaler = read("hpa.yaml")["spec"]
    (metric,) = scaler["metrics"]
    external = metric["external"]
    assert external["metric"]["selector"]["matchLabels"]["per-replica"] == external["target"]["averageValue"]
    keda = read("keda.yaml")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert scaler["behavior"]["scaleDown"] == keda["scaleDown"]
