"""The live page and its API in a lab: two teams with different rights, and hostile visitors.

The member of team-a has the role tessera-view in its namespace, that of team-b may only read pods there.
"""

import http.client
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.command_line import run_tessera
from tests.support.running_lab import ROOT, TIMEOUT, RunningLab

ORIGIN = "https://gpu.example.com"
PORT = 8088


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "1xA100-40GB,1xT4"]


@pytest.fixture(scope="module")
def page(cluster: RunningLab) -> "Page":
    """A page in a cluster with a pod on a card in team-a, and one in team-b; each team has an account."""
    cluster.tessera("install", "--dashboard-origin", ORIGIN)
    for team in ("team-a", "team-b"):
        cluster.kubectl("create", "namespace", team)
        cluster.kubectl("-n", team, "create", "serviceaccount", "member")
        cluster.apply(holder(f"holder-{team}"), team)
    role = ["--verb=get,list,watch", "--resource=pods"]
    cluster.kubectl("create", "clusterrole", "pod-reader", *role)
    for team, name in (("team-a", "tessera-view"), ("team-b", "pod-reader")):
        arguments = [f"--clusterrole={name}", f"--serviceaccount={team}:member"]
        cluster.kubectl("-n", team, "create", "rolebinding", "members", *arguments)
    return Page(cluster)


def holder(name: str) -> dict[str, Any]:
    return RunningLab.pod(name, {"nvidia.com/mig-2g.10gb": 1})


class Page:
    """The page's pod."""

    def __init__(self, lab: RunningLab) -> None:
        self.lab = lab
        self._tokens: dict[tuple[str, str], str] = {}
        self.address = lab.eventually(self._address)

    def _address(self) -> str:
        found = self.lab.get("pods", "-n", "tessera-system", "-l", "app.kubernetes.io/name=tessera-dashboard")
        running = [each["status"] for each in found["items"] if each["status"].get("phase") == "Running"]
        return str(running[0].get("podIP", "")) if running else ""

    def token(self, team: str, account: str = "member") -> str:
        """A token of a team's account."""
        if (team, account) not in self._tokens:
            self._tokens[team, account] = self.lab.kubectl("-n", team, "create", "token", account).strip()
        return self._tokens[team, account]

    def run(self, team: str, *command: str, account: str = "member") -> subprocess.CompletedProcess[str]:
        """Runs ``tessera`` as an account of a team."""
        config = yaml.safe_load(Path(self.lab.state.kubeconfig).read_text(encoding="utf-8"))
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": self.token(team, account)}}]
        config["contexts"][0]["context"]["namespace"] = team
        own = self.lab.folder / f"kubeconfig-{team}"
        own.write_text(yaml.safe_dump(config), encoding="utf-8")
        return run_tessera(*command, env={**self.lab.env, "KUBECONFIG": str(own)}, cwd=ROOT, timeout=TIMEOUT)

    def ask(self, path: str, token: str = "", **headers: str) -> tuple[int, str]:
        """Status and beginning of an answer."""
        connection = http.client.HTTPConnection(self.address, PORT, timeout=TIMEOUT)
        given = {"Host": "localhost", **headers, **({"Authorization": f"Bearer {token}"} if token else {})}
        try:
            connection.request("GET", path, headers=given)
            answer = connection.getresponse()
            if path.startswith("/feed") and answer.status == 200:
                return 200, "".join(answer.readline().decode() for _ in range(3))
            return answer.status, answer.read().decode()
        except ConnectionError as error:
            return 0, str(error)
        finally:
            connection.close()

    def reason(self, pod: str, team: str) -> tuple[int, str] | None:
        """Why a pod of a team waits, once the page has it and the queue has planned for it."""
        found = self.ask(f"/why/{team}/{pod}", self.token(team))
        return found if "waits for room" in found[1] else None

    def metric(self, name: str) -> list[str]:
        """The values of an external metric of team-a's services."""
        path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/team-a/{name}?labelSelector=name%3Dvllm"
        return [each["value"] for each in self.lab.get_path(path)["items"]]

    def services(self, team: str) -> list[dict[str, Any]]:
        """The services that a team's member sees, once both pods of one are ready and tell of their load."""
        done = self.run(team, "top", "--by", "services", "-o", "json")
        rows = json.loads(done.stdout)["services"] if done.returncode == 0 else []
        return [each for each in rows if each["ready"] == 2 and each.get("waiting") and "power" in each]

    def feed(self, team: str) -> str:
        """The snapshot that a team's member gets, once both pods hold their cards."""
        return str(self.lab.eventually(lambda: self._snapshot(team)))

    def _snapshot(self, team: str) -> str:
        status, text = self.ask("/feed", self.token(team))
        return text if status == 200 and text.count('"pod":"') == 2 and "holder-" in text else ""


def test_each_team_sees_all_cards_and_the_names_of_its_own_pods(page: Page) -> None:
    for own, other in (("team-a", "team-b"), ("team-b", "team-a")):
        text = page.feed(own)
        assert f"holder-{own}" in text
        assert other not in text
        assert "node-1" not in text
        documents = json.loads(text.partition("data: ")[2])["set"]
        assert len([key for key in documents if key.startswith("card/")]) == 2


def test_the_page_is_reached_by_a_port_forward(page: Page) -> None:
    with page.lab.forwarded("service/tessera-dashboard", PORT, "-n", "tessera-system") as port:
        done = page.lab.run("curl", "-s", f"http://localhost:{port}/")
    assert "<title>Tessera" in done.stdout


def test_a_waiting_pod_is_explained_to_its_team_only_and_without_names_of_others(page: Page) -> None:
    waiting = RunningLab.pod("waits", {"nvidia.com/mig-7g.40gb": 1})
    page.lab.apply(waiting, "team-b")
    status, text = page.lab.eventually(lambda: page.reason("waits", "team-b"))
    assert (status, json.loads(text)["answers"][0]["case"]) == (200, "full")
    assert "team-a" not in text
    assert "node-1" in text, "its own pod is there"
    assert page.ask("/why/team-b/waits", page.token("team-a"))[0] == 403
    page.lab.kubectl("-n", "team-b", "delete", "pod", "waits")


def test_the_queue_shows_a_tenant_its_place_and_no_name_of_others(page: Page) -> None:
    for team in ("team-a", "team-b"):
        waiting = RunningLab.pod("waits", {"nvidia.com/mig-7g.40gb": 1})
        page.lab.apply(waiting, team)

    def placed() -> subprocess.CompletedProcess[str] | None:
        done = page.run("team-a", "queue")
        return done if "/2" in done.stdout else None

    done = page.lab.eventually(placed)
    assert "team-a/holder-team-a on node-1" in done.stdout or "another team on node-1" in done.stdout
    assert not any(name in done.stdout for name in ("team-b", "~"))
    assert done.stderr == ""
    told = page.run("team-b", "queue")
    assert (told.returncode, "waits" in told.stdout) == (0, True)
    assert "--clusterrole=tessera-view --serviceaccount=team-b:member -n team-b" in told.stderr
    for team in ("team-a", "team-b"):
        page.lab.kubectl("-n", team, "delete", "pod", "waits")


@pytest.mark.parametrize("command", [["top", "--once"], ["map"], ["idle", "--unknown"], ["health"]])
def test_the_commands_show_a_tenant_all_cards_and_the_names_of_its_pods(page: Page, command: list[str]) -> None:
    page.feed("team-a")

    def whole() -> subprocess.CompletedProcess[str] | None:
        done = page.run("team-a", *command)
        return done if done.returncode == 0 and ("holder-" in done.stdout or command == ["health"]) else None

    done = page.lab.eventually(whole)
    assert ("team-a/holder-team-a" in done.stdout) is (command != ["health"])
    assert not any(name in done.stdout for name in ("team-b", "node-2", "~/~"))
    assert ("another team" in done.stdout) is (command != ["health"])
    assert done.stderr.startswith("note: names that begin with ~") or command == ["health"]


def test_the_doctor_tells_a_tenant_in_one_line_what_it_may_not_examine(page: Page) -> None:
    told = page.run("team-a", "doctor")
    assert told.stdout.count("not examined") == 1
    assert "for lack of rights: feature-gates, nodes, " in told.stdout
    assert "does not work for you" not in told.stdout
    rights = page.run("team-a", "doctor", "--all").stdout
    assert "ok       rights: yours suffice for all commands but tessera install, which is an administrator's" in rights


@pytest.mark.parametrize(
    "command", [["top", "--once"], ["map"], ["idle"], ["health"], ["topo", "holder-team-b"], ["why", "holder-team-b"]]
)
def test_without_the_role_one_line_has_the_administrators_command(page: Page, command: list[str]) -> None:
    done = page.run("team-b", *command)
    assert (done.returncode == 0) is (command[0] == "why"), done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert (
        "kubectl create rolebinding gpu-viewers --clusterrole=tessera-view --serviceaccount=team-b:member -n team-b"
    ) in done.stderr
    assert "Forbidden" not in done.stderr


def test_why_a_node_tells_a_tenant_in_one_line_who_gives_the_right_and_what_works_without(page: Page) -> None:
    done = page.run("team-a", "why", "node", "node-1")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("error: you may not read this node; tessera why POD explains your own pods without that")
    assert "kubectl create clusterrolebinding gpu-cluster-viewers --clusterrole=tessera-cluster-view" in line
    assert line.endswith("--serviceaccount=team-a:member")


def test_the_cards_of_a_node_without_own_pods_are_not_shown(page: Page) -> None:
    for node in ("node-1", "node-2"):
        done = page.run("team-a", "topo", f"node/{node}")
        (own,) = [page.lab.get("pod", "-n", "team-a", "holder-team-a")["spec"]["nodeName"]]
        refused = f"you have no pod on node '{node}', so you may not see its cards"
        assert (done.returncode, refused in done.stderr) == ((0, False) if node == own else (1, True))


def test_only_who_may_list_pods_reads_what_they_were_told(page: Page) -> None:
    own, everywhere = page.run("team-b", "queue"), page.run("team-b", "queue", "-A")
    assert (own.returncode, everywhere.returncode) == (0, 1)
    assert "this is what the pods were told; you may not see the cards of the cluster" in own.stderr
    (line,) = everywhere.stderr.splitlines()
    assert line.startswith("error: you may not list the pods of all namespaces: name one with -n; to see who stands")
    assert "were told" not in everywhere.stderr


def test_why_explains_a_tenants_pod_without_names_of_others(page: Page) -> None:
    done = page.run("team-a", "why", "holder-team-a")
    assert "runs on node node-1" in done.stdout
    assert not any(name in done.stdout for name in ("team-b", "~"))
    missing = page.run("team-a", "why", "holder-team-c")
    assert (missing.returncode, "did you mean holder-team-a?" in missing.stderr) == (1, True)


def test_the_events_of_a_pod_are_for_those_whom_the_api_server_lets_read_them(
    page: Page, roles: dict[str, str]
) -> None:
    token = page.token("team-a", roles["view"])

    def events() -> list[dict[str, Any]] | None:
        status, text = page.ask("/events/team-a/own-statefulset-0", token)
        found: list[dict[str, Any]] = json.loads(text) if status == 200 else []
        return found or None

    assert {"reason", "message", "type"} <= page.lab.eventually(events)[0].keys()
    refused = page.ask("/events/team-b/holder-team-b", page.token("team-b"))
    assert (refused[0], "cannot list resource" in refused[1]) == (403, True)
    assert page.ask("/events/team-b/holder-team-b", token)[0] == 403
    assert page.ask("/events/team-a/own-statefulset-0")[0] == 401
    for path in ("/why/-/node-1", "/events/-/node-1"):
        assert page.ask(path, token)[0] == 403
    page.lab.kubectl("-n", "team-b", "create", "serviceaccount", "admin")
    admin = ("create", "clusterrolebinding", "admin", "--clusterrole=cluster-admin", "--serviceaccount=team-b:admin")
    page.lab.kubectl(*admin)
    answered = page.ask("/why/-/node-1", page.token("team-b", "admin"))
    assert (answered[0], "is as configured" in answered[1]) == (200, True), answered
    page.lab.kubectl("delete", "clusterrolebinding", "admin")


TOO_MUCH = {"nvidia.com/mig-7g.40gb": 1}
WORKLOADS = ("Deployment", "StatefulSet", "Job", "DaemonSet")


def workload(kind: str) -> dict[str, Any]:
    """A workload whose pods wait, since both holders are on the only card that could take one."""
    labels = {"app": kind.lower()}
    restarts = {"restartPolicy": "Never" if kind == "Job" else "Always"}
    template = {"metadata": {"labels": labels}, "spec": {**RunningLab.pod("x", TOO_MUCH)["spec"], **restarts}}
    spec: dict[str, Any] = {"template": template}
    if kind != "Job":
        spec |= {"selector": {"matchLabels": labels}}
    if kind == "StatefulSet":
        spec |= {"serviceName": "x"}
    group = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": f"own-{kind.lower()}"}, "spec": spec}


#: Each command of a tenant, with words of its full answer.
COMMANDS = {
    "map": ("team-a/holder-team-a",),
    "top --once": ("team-a/holder-team-a", "node-1"),
    "queue": ("on node-1", "own-deployment", "own-job"),
    "health": ("healthy",),
    "topo holder-team-a": ("GPU0\t X \t0-55,112-167\t0\t\tN/A",),
    "why holder-team-a": ("runs on node node-1",),
    "why own-statefulset-0": ("waits for room",),
    "why deployment/own-deployment": ("waits for room", "another team", "position"),
    "why statefulset/own-statefulset": ("waits for room", "another team", "position"),
    "why job/own-job": ("waits for room", "another team", "position"),
    "why daemonset/own-daemonset": ("waits for room", "another team", "position"),
}


@pytest.fixture(scope="module")
def roles(page: Page) -> "dict[str, str]":
    """Accounts of team-a with one of Kubernetes' own roles or ours there and nothing else, by role; workloads wait."""
    found = {}
    for role in ("view", "edit", "tessera-edit"):
        page.lab.kubectl("-n", "team-a", "create", "serviceaccount", f"of-{role}")
        binding = ("create", "rolebinding", f"of-{role}", f"--clusterrole={role}", f"--serviceaccount=team-a:of-{role}")
        page.lab.kubectl("-n", "team-a", *binding)
        found[role] = f"of-{role}"
    for kind in WORKLOADS:
        page.lab.apply(workload(kind), "team-a")
    return found


#: ``make test`` gives every answer to one of the roles, and one answer to each.
@pytest.mark.parametrize(
    ("role", "command"),
    [
        pytest.param(role, command, marks=[] if role == "view" or command == "queue" else pytest.mark.soak)
        for role in ("view", "edit", "tessera-edit")
        for command in COMMANDS
    ],
)
def test_a_role_in_one_namespace_is_enough_for_a_full_answer(
    page: Page, roles: dict[str, str], command: str, role: str
) -> None:
    def answered() -> subprocess.CompletedProcess[str] | None:
        done = page.run("team-a", *command.split(), account=roles[role])
        return done if all(words.lower() in done.stdout.lower() for words in COMMANDS[command]) else None

    done = page.lab.eventually(answered)
    assert done.returncode == 0
    assert not any(words in done.stdout + done.stderr for words in ("Forbidden", "cannot list", "team-b", "~/~"))
    assert all(line.startswith("note: names that begin with ~") for line in done.stderr.splitlines())


def test_kubectl_reads_the_api_and_rbac_decides(page: Page) -> None:
    assert page.lab.kubectl("auth", "can-i", "list", "usages.view.tessera.dev", "-n", "team-a").strip() == "yes"
    shown = page.lab.get("usages", "-n", "team-a")
    assert [each["metadata"]["name"] for each in shown["items"]] == ["cluster"]
    refused = page.lab.kubectl("get", "usages", "-n", "team-b", "--as=system:serviceaccount:team-b:member", fails=True)
    assert 'cannot list resource "usages" in API group "view.tessera.dev" in the namespace "team-b"' in refused


#: A service with a replica on a small slice.
SERVICE: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "vllm"},
    "spec": {
        "selector": {"matchLabels": {"app": "vllm"}},
        "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "template": {
            "metadata": {"labels": {"app": "vllm"}},
            "spec": {**RunningLab.pod("x", {"nvidia.com/mig-1g.5gb": 1})["spec"], "restartPolicy": "Always"},
        },
    },
}


def test_a_scaler_reads_the_room_of_a_service_where_nobody_else_serves_external_metrics(page: Page) -> None:
    lab = page.lab
    lab.kubectl("create", "-f", "examples/services/external-metrics.yaml")
    again = lab.kubectl("create", "-f", "examples/services/external-metrics.yaml", fails=True)
    assert "AlreadyExists" in again
    told = lab.run_tessera("doctor", "-o", "json").stdout
    assert "external.metrics.k8s.io is served by tessera-system/tessera-dashboard" in told
    lab.apply(SERVICE, "team-a")
    lab.kubectl("-n", "team-a", "apply", "-f", "examples/services/hpa.yaml")
    assert lab.eventually(lambda: page.metric("tessera_service_room")) == ["2000m"]  # of seven slices five are held
    # Nobody knows the load of a pod without a page: the scaler says so and changes nothing.
    scaler = lab.eventually(lambda: lab.get("hpa", "vllm", "-n", "team-a").get("status", {}).get("conditions"))
    assert {each["reason"] for each in scaler if each["type"] == "ScalingActive"} == {"FailedGetExternalMetric"}
    assert lab.get("deployment", "vllm", "-n", "team-a")["spec"]["replicas"] == 1


def test_requests_make_a_service_grow_into_the_room_that_there_is(page: Page) -> None:
    """Cards, kubelet, server and HPA controller are the lab's; all between a request and the scale is Tessera's.

    The server works on four of 18 requests at a time and counts the others as waiting. At 16 for each replica they are
    worth two, and three fit.
    """
    lab, service = page.lab, "/api/v1/namespaces/team-a/services/vllm:8000/proxy/metrics"
    # Nothing waits for room, for which slots would be reserved.
    for kind in WORKLOADS:
        lab.kubectl("delete", f"{kind.lower()}/own-{kind.lower()}", "-n", "team-a", "--ignore-not-found")
    for team in ("team-a", "team-b"):
        lab.kubectl("delete", "pod", "waits", "-n", team, "--ignore-not-found")
    declared = "{port: 8000, model: m, latency: 3600, concurrency: 4}"
    annotations = {"lab.tessera.dev/http": declared, "prometheus.io/scrape": "true", "prometheus.io/port": "8000"}
    template = {**SERVICE["spec"]["template"], "metadata": {"labels": {"app": "vllm"}, "annotations": annotations}}
    lab.apply({**SERVICE, "spec": {**SERVICE["spec"], "template": template}}, "team-a")
    ports = {"selector": {"app": "vllm"}, "ports": [{"port": 8000}]}
    lab.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vllm"}, "spec": ports}, "team-a")
    assert lab.eventually(lambda: page.metric("tessera_service_load")) == ["0m"]
    with lab.forwarded("service/vllm", 8000, "-n", "team-a") as port:
        address = f"http://localhost:{port}/v1/completions?[1-18]"
        command = ("curl", "-s", "-Z", "--parallel-immediate", "--parallel-max", "18", "-d", "{}", address)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as load:
            try:
                assert lab.eventually(lambda: page.metric("tessera_service_load") == ["18000m"])
                labels = '{engine="0",model_name="m"}'
                busy = f"vllm:num_requests_running{labels} 4.0", f"vllm:num_requests_waiting{labels} 14.0"
                # The Service may send a request to a replica that has just come.
                assert lab.eventually(lambda: set(busy) <= set(lab.kubectl("get", "--raw", service).splitlines()))
                assert lab.eventually(lambda: page.metric("tessera_service_replicas") == ["2000m"])
                (row,) = lab.eventually(lambda: page.services("team-a"))
                assert (row["namespace"], row["name"], row["waiting"], row["ready"]) == ("team-a", "vllm", 14.0, 2)
                assert row["power"] > 0
                assert page.services("team-b") == [], "its role lets it ask for nothing"
                shown = lab.tessera("top", "--by", "services", "-o", "wide")
                assert re.search(r"team-a/Deployment/vllm +2/[0-9] ", shown), shown
            finally:
                load.kill()
    events = lab.kubectl("-n", "team-a", "get", "events", "--field-selector=reason=SuccessfulRescale")
    assert "New size: 2; reason: external metric team-a/tessera_service_load above target" in events


def test_a_token_ends_with_its_account_and_one_option_removes_the_page(page: Page) -> None:
    token = page.token("team-b")
    assert page.ask("/whoami", token)[0] == 200
    done = page.lab.tessera("install", "--no-dashboard")
    assert "deployment.apps/tessera-dashboard in tessera-system deleted" in done
    assert "serviceaccount/tessera-dashboard in tessera-system deleted" in done
    assert "tessera-dashboard" not in page.lab.tessera("install", "--no-dashboard", "--dry-run")
    page.lab.eventually(lambda: page.ask("/whoami", token)[0] == 0)
