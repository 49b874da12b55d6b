"""Limits on the objects of a node: its Instaslice object, its annotations, its devices."""

from tessera.limits import Limit

CARD_SLOTS = Limit(
    32,
    "memory slots",
    "memory slots of a card in an Instaslice object",
    "RTX PRO 6000 Blackwell has the most, 12; a forged start of 2,000,000,000 made masks of as many bits",
)
CARD_PROFILES = Limit(
    32,
    "profiles",
    "profiles of a card in an Instaslice object",
    "NVML has 18; the cost of a decision grows with them",
)
NODE_CARDS = Limit(
    64,
    "cards",
    "cards of a node in its Instaslice object",
    "four times the largest machine",
)
NODE_DEVICES = Limit(
    256,
    "devices",
    "whole cards, or shares, of a node that Tessera gives to pods of managed namespaces",
    "16 cards of 16 shares; further ones are left to pods that the scheduler places",
)
NODE_SLICES = Limit(
    512,
    "slices",
    "slices of a pod, or of others, in an Instaslice object",
    "all slots of as many cards as a node may have",
)
NODE_PROMISES = Limit(
    1024,
    "entries",
    "pods with slices in a node's Instaslice object",
    "twice as many as a node has slots, since slices that are taken back are listed beside new ones",
)
NAMES = Limit(
    253,
    "characters",
    "names and identifiers in an Instaslice object",
    "a name of Kubernetes has no more; those that Tessera writes are far shorter",
)
OFFERS = Limit(
    128,
    "offers",
    "entries of a node's annotation tessera.dev/offers",
    "a node of 16 cards in every MIG profile needs fewer; each entry of a node is compared for every pod",
)
OFFERS_TEXT = Limit(
    64 * 1024,
    "bytes",
    "a node's annotation tessera.dev/offers",
    "a quarter of what Kubernetes allows for all annotations of an object",
)
RESOURCE_ENTRIES = Limit(
    50_000,
    "entries",
    "devices of one resource that an agent announces",
    "kubelet takes the list in one message of 4 MiB, and an entry has up to 75 bytes",
)
OS_IMAGE = Limit(
    200,
    "characters",
    "a node's osImage; the rest is not read",
    "kubelet's are below 100; regular expressions read it",
)
USAGE_PAGE = Limit(
    8 * 2**20,
    "bytes",
    "the page `/usage` of an agent that a command reads",
    "64 cards with 512 slices and as many pods have 1 MiB",
)
USAGE_LEASES = Limit(
    10_000,
    "leases",
    "leases on the page `/usage` of an agent",
    "an agent lists no more by default (`--max-series`)",
)
USAGE_VALUES = Limit(
    10**18,
    "units",
    "a measured value or a time on the page `/usage` of an agent, in base units",
    "a million times the memory of the largest card in bytes; sums of all cards stay finite",
)
USAGE_TEXT = Limit(
    2_000,
    "characters",
    "a text for people on the page `/usage` of an agent",
    "the longest of an agent has some hundred",
)
USAGE_QUANTITIES = Limit(
    128,
    "quantities",
    "quantities of a card or MIG device on the page `/usage` of an agent",
    "more than twice as many as an agent measures",
)
NODE_INDEXES = Limit(
    1_023,
    "as an index",
    "index of a card on the page `/usage` of an agent",
    "far more than a node has cards",
)
ENDED_LEASES = Limit(
    1_000,
    "leases",
    "leases that ended in the last quarter of an hour, on the page `/usage` of an agent",
    "each of 512 slices ends twice in that time; with more, the page says since when the list has all",
)
CARD_EVIDENCE = Limit(
    16,
    "errors",
    "errors of a card on the page `/usage` of an agent",
    "a card has at most a few kinds of errors at a time; the rest is counted",
)
CARD_HOLDERS = Limit(
    32,
    "holders",
    "pods and processes that hold a card, on the page `/usage` of an agent",
    "more holders than that are not ended by hand; the rest is counted",
)
CARD_FAULTS = Limit(
    256,
    "faults",
    "faults in a node's annotation tessera.dev/cards, and in tessera.dev/spared-faults",
    "64 cards with four kinds of errors each",
)
CARD_FAULTS_TEXT = Limit(
    64 * 1024,
    "characters",
    "each of these two annotations",
    "all faults that are allowed have 50 KiB without their words, and the UUIDs of all cards 5 KiB",
)
CARD_FAULT_WORDS = Limit(
    120,
    "characters",
    "words of one fault in a node's annotation tessera.dev/cards",
    "NVML's texts of errors fit; XIDs have none, since readers have their meaning",
)
CORDON_REASON = Limit(
    256,
    "characters",
    "the reason in an annotation tessera.dev/cordon.*; the rest is cut off",
    "two lines of a terminal; a node's condition repeats it for each cordoned card",
)
LINKED_CARDS = Limit(
    16,
    "cards",
    "cards in a node's annotation tessera.dev/card-links",
    "no machine has more in one host; the controller searches the best of their sets",
)
LINK_POINTS = Limit(
    100_000,
    "points",
    "points of two cards in that annotation",
    "50 times those of 18 NVLinks, the most that a card has",
)
CARD_LINKS_TEXT = Limit(
    2 * 1024,
    "characters",
    "a node's annotation tessera.dev/card-links",
    "16 cards with the largest points have 900",
)
BREAKER_RULES = Limit(
    64,
    "rules",
    "rules of the breaker in the controller's metrics and Events",
    "a fleet has a few kinds of errors at a time; a node that lies cannot make thousands of series",
)
REMOVAL_NOTES = Limit(
    64,
    "notes",
    "notes of a node's annotation tessera.dev/removed",
    "a node of 16 cards in slices has fewer that stay; the rest is counted",
)
REMOVAL_NOTE = Limit(
    400,
    "characters",
    "one of these notes",
    "it names a card, a slice, a pod and a command",
)
PREFLIGHT_RATES = Limit(
    16,
    "rates",
    "rates of a card in the annotation `tessera.dev/preflight`",
    "the preflight measures five",
)
PREFLIGHT_TEXT = Limit(
    32 * 1024,
    "characters",
    "the annotation `tessera.dev/preflight`",
    "64 cards with all their rates have half of it; all annotations of a Node have 256 KiB",
)
