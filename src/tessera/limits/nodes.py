"""Limits on the objects of a node: its Instaslice object, its annotations, its devices."""

from tessera.limits import Limit

CARD_SLOTS = Limit(
    32,
    "memory slots",
    "memory slots of a card in an Instaslice object",
    "RTX PRO 6000 Blackwell has the most, 12; a forged start of 2,000,000,000 made masks of as many bits",
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
NODE_IMAGES = Limit(
    256,
    "images",
    "of a node's status whose nodes pods with these images prefer",
    "kubelet lists 50; further ones count as absent",
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
NODE_INDEXES = Limit(
    1_023,
    "as an index",
    "index of a card on the page `/usage` of an agent",
    "far more than a node has cards",
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
CORDON_REASON = Limit(
    256,
    "characters",
    "the reason in an annotation tessera.dev/cordon.*; the rest is cut off",
    "two lines of a terminal; a node's condition repeats it for each cordoned card",
)
