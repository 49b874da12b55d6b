"""Limits on resource claims, their selectors and their devices; :mod:`tessera.cel` has those on CEL's syntax."""

from tessera.limits import Limit

EXPRESSION_TEXT = Limit(
    10_240,
    "characters",
    "the CEL expression of a selector of devices",
    "Kubernetes' own bound; selectors of devices have a hundred",
)
EXPRESSION_COST = Limit(
    1_000_000,
    "units",
    "one evaluation of a selector, all of its evaluations beyond the usual cost, and those of a pod on one node",
    "Kubernetes' own bound of one evaluation; a comparison of an attribute costs 5",
)
EXPRESSION_USUAL_COST = Limit(
    100,
    "units",
    "an evaluation of a selector that does not count against the bound of all",
    "selectors cost 5 to 50; one that costs a million on each of a million devices would take weeks",
)
NAMESPACE_EXPRESSIONS_COST = Limit(
    3_000_000,
    "units",
    "all evaluations of selectors for the claims of one namespace in an hour",
    "a second or two; four thousand different selectors cost a million, as do 60 of single cards on a thousand nodes",
)
NAMESPACE_EXPRESSIONS_SECONDS = 3600.0
EXPRESSIONS = Limit(
    4_096, "expressions", "selectors whose costs are remembered", "a cluster has tens; all are forgotten together"
)
SELECTOR_RESULTS = Limit(
    65_536,
    "results",
    "results of selectors that are remembered",
    "a selector has one for each kind of device; one that reads UUIDs has one a device; all are forgotten together",
)
CLAIM_ENTRIES = Limit(
    32,
    "entries",
    "requests, constraints, configurations, selectors of a request, and devices of a claim",
    "Kubernetes' own bound",
)
CLAIM_EXPRESSIONS = Limit(
    65_536,
    "characters",
    "all selectors of a claim and of its classes together",
    "eight requests have 2,000; Kubernetes allows 32 x 8 x 64 selectors, which would have to be compiled for each node",
)
CARD_CHOICES = Limit(
    256,
    "choices",
    "different selectors of single cards, and requests for all, that the claims of living pods have",
    "each is a name that planning compares with every card; a cluster whose users name their cards has tens",
)
NAMESPACE_CARD_CHOICES = Limit(
    64,
    "choices",
    "the same of one namespace; less where other namespaces have some: a quarter of what they leave",
    "so that no few namespaces use up what all have; eight cards by index and PCIe root are 40",
)
CLAIM_ALTERNATIVES = Limit(8, "alternatives", "`firstAvailable` of a request", "Kubernetes' own bound")
CLAIM_TOLERATIONS = Limit(16, "tolerations", "tolerations of a request", "Kubernetes' own bound")
CLAIM_CONSUMERS = Limit(256, "pods", "`reservedFor` of a claim", "Kubernetes' own bound")
CLAIM_STEPS = Limit(
    50_000,
    "tries",
    "tries of a device, or of a selector on a device, for the claims of a pod on one node",
    "half a second; 8 slices on 16 free cards need 15,000, and only contradictory constraints more",
)
SLICE_DEVICES = Limit(128, "devices", "one ResourceSlice", "Kubernetes' own bound; 64 if any has counters or taints")
SLICE_TAINTED_DEVICES = Limit(
    64, "devices", "one ResourceSlice that Tessera writes, whose devices have taints", "Kubernetes' own bound"
)
SLICE_COUNTER_SETS = Limit(8, "sets", "counter sets of one ResourceSlice", "Kubernetes' own bound")
COUNTERS = Limit(32, "counters", "counters of a set", "Kubernetes' own bound; a card has 8 memory slices")
DEVICE_COUNTER_SETS = Limit(2, "sets", "counter sets that a device takes from", "Kubernetes' own bound")
DEVICE_TRAITS = Limit(32, "values", "attributes of a device, and amounts", "Kubernetes' own bound is 32 of both")
DEVICE_TAINTS = Limit(16, "taints", "taints of a device", "Kubernetes' own bound")
NODE_SORTS = Limit(
    64,
    "kinds",
    "kinds of devices that a node publishes: devices of a kind differ by card and place alone",
    "a node has a dozen for each model of its cards; selectors of all claims are evaluated on each",
)
SORT_CHANGES = Limit(
    16,
    "changes",
    "changes of a node's kinds of devices at once",
    "a new driver is one change; each has the claims of all pods read again",
)
SORT_CHANGE_SECONDS = 60.0
