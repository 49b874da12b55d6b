"""Settings that nobody sane would write: ConfigMaps, files and annotations, through everything that reads them.

Each text begins as a good one and is spoilt in a few places, so that much of it gets past the first look. Whatever it
is, its reader takes it or refuses it with a short text, in bounded time.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from tests.support.cost import run_within
from tests.support.searching import examples

from tessera.agent.base.node_objects import bound_messages, conditions_manifest
from tessera.agent.config import ConfigMapFiles, select_layout, select_profile
from tessera.agent.node_status.node_facts import sharing_condition
from tessera.api.documents import load_document
from tessera.api.mig_layouts import MigCard, resolve_targets
from tessera.api.nodes.offers import NodeOffer, OfferKind, decode_offers, encode_offers, placement_offers
from tessera.api.pod_annotations import KEYS, RequirementError, requirements_of
from tessera.api.problems import FileRefused
from tessera.api.sharing.advertisement import make_advertisement
from tessera.api.sharing.devices import GpuDescription
from tessera.api.sharing.profile import MigStrategy
from tessera.driver.driver_sets import SET_ANNOTATION, set_of
from tessera.driver.kernels import parse_kernel_lists
from tessera.driver.node_facts import parse_upgrade_record, referenced_sets
from tessera.driver.policies import PolicyObjects, decode_policies, select_policy
from tessera.gpu_operator.settings_reader import read_settings
from tessera.kube.resources.meta import ObjectMeta
from tessera.limits import CONDITION_MESSAGE, SETTINGS_MISTAKES
from tessera.provisioning.history import RECORDS_KEY, WORKLOADS_KEY, ProvisioningHistory
from tessera.text import one_line

EXAMPLES = Path(__file__).parents[1] / "examples"
#: CPU seconds of one reading: the largest file that is read costs half of one.
MOST_SECONDS = 5.0

SHARING = """version: v1
flags: {migStrategy: mixed, plugin: {deviceListStrategy: [envvar]}}
resources: {gpus: [{pattern: "*", name: nvidia.com/gpu}], mig: [{pattern: "1g*", name: nvidia.com/small}]}
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - {name: nvidia.com/gpu, rename: gpu.shared, devices: [0, "GPU-0", "0:1"], replicas: 4}
    - {name: nvidia.com/mig-1g.5gb, devices: all, replicas: 2}
"""
LAYOUTS = """version: v1
mig-configs:
  wanted:
  - {devices: [0, 1], mig-enabled: true, mig-devices: {1g.5gb: 2, "2g.10gb": 1, "1g.5gb+me": 1}}
  - {device-filter: ["0x20B010DE"], devices: all, mig-enabled: false, mig-devices: {}}
"""
VALUES = (EXAMPLES / "sharing" / "values.yaml").read_text(encoding="utf-8")
POLICY = (EXAMPLES / "drivers" / "cluster-policy.yaml").read_text(encoding="utf-8")
OFFER = NodeOffer(
    resource="nvidia.com/gpu.shared",
    kind=OfferKind.SHARE,
    product="NVIDIA A100-SXM4-40GB",
    card_memory_mib=40960,
    memory_mib=10240,
    compute_capability="8.0",
    count=4,
    replicas=4,
    profile="3g.20gb",
)
OFFERS = encode_offers([OFFER])
RECORD = '{"previous":"a","target":"b","since":1.0,"began":2.0,"cause":"x"}'
BOOK = '{"node":"n","uid":"u","at":{"ready":1.0}}\n{"at":{}}'
GOOD_POLICY = {**load_document(POLICY), "metadata": {"name": "p", "uid": "u"}}
BAD_POLICY = {**GOOD_POLICY, "spec": {"driver": {"version": "no version"}}}
FOLLOWED = msgspec.json.encode(
    select_policy(PolicyObjects(cluster_policies=[GOOD_POLICY]), {"n": {}}).last_valid
).decode()

SCALARS = (
    *("", "~", "-1", "0", "1e400", "0x_", ".nan", "-.inf", "9" * 5000, "2147483648", "1:0", "2026-01-01", "true"),
    *("[]", "{}", "[[]]", "{a: b}", "*a", "&a [*a]", "&a {b: *a}", "!!binary AA==", "!!set {a}", "!!int x", "<<"),
    *("!!python/object:os.system x", "!!timestamp 2026-01-01", "? [a]\n: b", "---", "...", "%YAML 9.9", "\t", "|"),
    *('"\\ud800"', '"\\0"', '"\\e[2J"', '"\\u202e"', "'\\'", "\x00", "\x1b[2J", "\u202e", "\ufeff", "\x85"),
)
#: These cost a second to read.
LARGE = ("[" * 5000, "{a: " * 3000, "- " * 3000, "x" * 2**20, "[" + "a," * 30_000 + "]", "? " * 1000, "*a " * 9)
TOKEN = re.compile(r"[A-Za-z0-9_./*+-]+|[\[\]{}:,\"']|\n")


def spoilt(text: str, chance: random.Random) -> str:
    """The text with a few tokens changed, doubled, dropped or swapped."""
    tokens = [(found.start(), found.end()) for found in TOKEN.finditer(text)]
    for start, end in sorted(chance.sample(tokens, min(len(tokens), chance.choice((1, 1, 2, 5)))), reverse=True):
        token = text[start:end]
        instead = chance.choice((chance.choice(SCALARS), chance.choice(SCALARS), token * 2, "", token.upper()))
        if chance.random() < 0.04:
            instead = chance.choice(LARGE)
        text = text[:start] + instead + text[end:]
    return text[: chance.randint(0, len(text))] if chance.random() < 0.1 else text


def said(error: object) -> None:
    """A message is short."""
    assert len(str(error)) < 1_500


def refusal(error: FileRefused) -> None:
    """A refusal can be shown anywhere: it is bounded, and what is shown of it encodes."""
    assert len(error.problems) <= SETTINGS_MISTAKES + 1
    for each in error.problems:
        said(each)
    one_line(error, CONDITION_MESSAGE).encode()


CARDS = tuple(
    GpuDescription(uuid=f"GPU-{n}", index=n, product="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0)) for n in (0, 1)
)
MIG_CARDS = tuple(MigCard(uuid=f"GPU-{n}", index=n, product="A100", pci_device_id=0x20B010DE) for n in (0, 1))


def sharing_profiles(chance: random.Random) -> None:
    texts = {"wanted": spoilt(SHARING, chance), spoilt("other", chance): spoilt(SHARING, chance)}
    desired = select_profile(ConfigMapFiles(source="ConfigMap a/b", texts=texts), "wanted", "", None)
    try:
        offer = make_advertisement(CARDS, desired.profile, MigStrategy.MIXED)
    except FileRefused as error:
        refusal(error)
        offer = None
    condition = sharing_condition(desired, desired.name, offer=offer)
    msgspec.json.encode(conditions_manifest(bound_messages([condition]).values(), {}, "now"))


def mig_layouts(chance: random.Random) -> None:
    texts = {"config.yaml": spoilt(LAYOUTS, chance), spoilt("more.yaml", chance): spoilt(LAYOUTS, chance)}
    desired = select_layout(ConfigMapFiles(source="ConfigMap a/b", texts=texts), "wanted", "")
    one_line(desired.problem or "", CONDITION_MESSAGE).encode()
    if desired.entries:
        try:
            resolve_targets(desired.entries, MIG_CARDS)
        except FileRefused as error:
            refusal(error)


def operator(chance: random.Random) -> None:
    for text in (VALUES, POLICY):
        try:
            found = read_settings(load_document(spoilt(text, chance)))
        except FileRefused as error:
            refusal(error)
        else:
            one_line("; ".join(map(str, found.notices))).encode()


def policies(chance: random.Random) -> None:
    try:
        policy = load_document(spoilt(POLICY, chance))
    except FileRefused as error:
        refusal(error)
        return
    if not isinstance(policy, dict) or not isinstance(policy.get("metadata"), dict):
        return  # the API server stores no such object
    select_policy(PolicyObjects(cluster_policies=[{**policy, "metadata": {"name": "p", "uid": "u"}}]), {"n": {}})


def annotations(chance: random.Random) -> None:
    try:
        placement_offers(decode_offers(spoilt(OFFERS, chance)))
    except ValueError as error:
        said(error)
    referenced_sets(spoilt("set-1", chance), parse_upgrade_record(spoilt(RECORD, chance)))
    set_of(ObjectMeta(annotations={SET_ANNOTATION: spoilt(RECORD, chance)}))
    try:
        requirements_of({chance.choice(sorted(KEYS)): chance.choice((*SCALARS, spoilt(">=8.0", chance)))})
    except RequirementError as error:
        said(error)


def kept_maps(chance: random.Random) -> None:
    for fault in ProvisioningHistory().load({RECORDS_KEY: spoilt(BOOK, chance), WORKLOADS_KEY: spoilt(BOOK, chance)}):
        said(fault)
    _, problems = parse_kernel_lists({spoilt("ubuntu22.04", chance): spoilt("5.15.0-69-generic amd64\n", chance)})
    for each in problems:
        said(each)
    kept = spoilt(FOLLOWED, chance)
    select_policy(PolicyObjects(cluster_policies=[BAD_POLICY], last_valid=decode_policies(kept)), {"n": {}})


READERS: dict[str, Callable[[random.Random], None]] = {
    each.__name__: each for each in (sharing_profiles, mig_layouts, operator, policies, annotations, kept_maps)
}


def read(reader: str, seed: int) -> None:
    run_within(MOST_SECONDS, lambda: READERS[reader](random.Random(seed)))


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=examples(60))
@given(seed=st.integers(0, 2**64 - 1))
def test_forged_settings_end_no_reader(reader: str, seed: int) -> None:
    read(reader, seed)


@pytest.mark.soak
@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=5_000)
@given(seed=st.integers(0, 2**64 - 1))
def test_many_forged_settings_end_no_reader(reader: str, seed: int) -> None:
    read(reader, seed)
