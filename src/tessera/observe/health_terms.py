"""Explains a term of a card's health: an XID, another source of evidence, a throttle reason, or a finding. Pure.

The reactions are those of an agent with its default settings; the environment variables of NVIDIA's device plugin can
change them on a node.
"""

import re
from collections.abc import Mapping

import msgspec

from tessera.agent.health.policy import APPLICATION_XIDS, ECC_REACTIONS, HealthPolicy
from tessera.agent.inventory.device_state import Reaction
from tessera.agent.monitoring.findings import EXCESS, MEMORY_OVER_LIMIT, RULES
from tessera.nvml.errors import XIDS
from tessera.nvml.interface import GpuEventKind
from tessera.text import UserError

CATALOGUE_SOURCE = "NVIDIA XID catalogue, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
#: The catalogue's numbers have three digits.
_XID = re.compile(r"(?:xid-?)?([0-9]{1,5})")
_NVML = "nvml.h, nvmlClocksEventReasons"
_MEMORY = "NVIDIA GPU Memory Error Management, docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt"
_TESSERA = "docs/health.md of Tessera"

_TAKEN = "allocates nothing of the card"
_ENDS = "three clean probes in a row, and 30 s without the error; the time doubles each time the error returns"
REACTIONS: Mapping[Reaction, str] = {
    Reaction.IGNORE: "none: the program caused the error; it is counted in tessera_gpu_events_total",
    Reaction.DEGRADE: f"shows the error and goes on to allocate the card, until {_ENDS}",
    Reaction.WITHHOLD: f"{_TAKEN}, or of the GPU instance that the error names, until {_ENDS}",
    Reaction.RESET: f"{_TAKEN} until it was reset; resets it once no pod holds any part of it",
    Reaction.REBOOT: f"{_TAKEN} until the node was booted; has it booted only where tessera-repairs says so",
}


class UnknownTermError(UserError):
    """A word that is no term of a card's health."""


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of a term.

    Attributes:
        term: the term.
        name: its name in the driver's source; empty if it has none.
        meaning: what happened.
        asks: what NVIDIA asks for.
        reaction: what Tessera does.
        note: what else is worth knowing; may be empty.
        source: where meaning and remedy come from.
    """

    term: str
    name: str = ""
    meaning: str
    asks: str
    reaction: str
    note: str = ""
    source: str


#: What else to know about an XID.
_NOTES: Mapping[int, str] = {
    13: "The card is well. Run the program with compute-sanitizer to find the access.",
    31: "The card is well. Run the program with compute-sanitizer to find the access.",
    45: "It follows another error or the end of a program, so it is not counted a second time.",
    48: "An XID 94 or 95 says whether one program or several lost data, an XID 63 or 64 whether the row was replaced.",
    63: "The spare row is used from the next reset of the card on; plan one when the card is free.",
    64: "If the error returns after a reset, replace the card.",
    79: "Look for PCIe errors in the kernel's log. If the error returns after a reboot, reseat or replace the card.",
    94: "Only the program that used the memory has to be restarted; other programs on the card go on.",
    95: "Every program on the card may have lost data; restart them all.",
    109: (
        "NVIDIA's device plugin takes it for an error of the program. The catalogue asks for a reset, since a card that"
        " cannot switch may fail the next pod too; a driver that reports no recovery action ends the fault without one."
        " DP_DISABLE_HEALTHCHECKS=109 restores the plugin's choice."
    ),
    154: "The next probe reads the action; `tessera health --explain driver` has the reactions to it.",
}

_AS_LONG_AS_MEASURED = REACTIONS[Reaction.DEGRADE].split(",")[0] + " as long as the card reports it"

_OTHERS: Mapping[str, Term] = {
    each.term: each
    for each in (
        Term(
            term="double-bit-ecc",
            meaning="memory lost data: an ECC error that could not be corrected",
            asks="what the XID that follows asks for (48, 63, 64, 94 or 95)",
            reaction=REACTIONS[ECC_REACTIONS[GpuEventKind.DOUBLE_BIT_ECC]],
            source=_MEMORY,
        ),
        Term(
            term="single-bit-ecc",
            meaning="memory corrected one bit; no data was lost",
            asks="nothing",
            reaction="none; it is counted in tessera_gpu_events_total, and in ecc_corrected of the metrics",
            source=_MEMORY,
        ),
        Term(
            term="row-remapping",
            meaning="the card replaces a bad row of its memory by a spare one from its next reset on",
            asks="reset the card when it is free",
            reaction=_AS_LONG_AS_MEASURED,
            note="tessera_gpu_row_remap_pending shows it.",
            source=_MEMORY,
        ),
        Term(
            term="no-spare-row",
            meaning="the card has no spare row left for a bad row of its memory",
            asks="replace the card",
            reaction=_AS_LONG_AS_MEASURED,
            note="tessera_gpu_row_remap_failed shows it.",
            source=_MEMORY,
        ),
        Term(
            term="sram-ecc",
            meaning="uncorrected errors of the card's on-chip memory (SRAM) exceed NVIDIA's threshold (R550 and newer)",
            asks="replace the card",
            reaction=_AS_LONG_AS_MEASURED,
            note="tessera_gpu_sram_threshold_exceeded shows it.",
            source=_MEMORY,
        ),
        Term(
            term="nvlink-errors",
            meaning="NVLinks of the card send packets again, are trained again, or have 100 checksum errors a second",
            asks="examine the NVLinks; reset the card if the errors go on",
            reaction=_AS_LONG_AS_MEASURED,
            note="tessera_gpu_nvlink_replays_total and its neighbours count the errors.",
            source="limits of DCGM's health checks of NVLinks; the counters are those of nvml.h",
        ),
        Term(
            term="fabric",
            meaning="the NVLink fabric that joins the cards of several machines is degraded for this card",
            asks="look at the fabric manager and the switches",
            reaction=_AS_LONG_AS_MEASURED,
            note="tessera_gpu_fabric_health_mask has the bits.",
            source="nvml.h, NVML_GPU_FABRIC_HEALTH_MASK",
        ),
        Term(
            term="probe",
            meaning="the agent's own calls to the card fail: three in a row, or the driver says that the card is lost",
            asks="nothing",
            reaction=f"failed: {REACTIONS[Reaction.WITHHOLD]}; lost: {REACTIONS[Reaction.REBOOT]}",
            note="A lost card is never given out, whatever the breaker says.",
            source=_TESSERA,
        ),
        Term(
            term="unreadable",
            meaning="the driver lists the card with an error, has no name for it, or cannot read its MIG instances",
            asks="what NVML's error says; if it stays, drain and reboot the node",
            reaction=f"{_TAKEN} while listed so, and until three probes in a row are clean; listed again each 10 s",
            note="Such a card is never given out, whatever the breaker says; the other cards of the node go on.",
            source=_TESSERA,
        ),
        Term(
            term="driver",
            meaning="the driver reports a recovery action for the card (R565 and newer)",
            asks="the action that it names: reset, drain, or reboot the node",
            reaction="that of the action; ends once the driver asks for none and three probes in a row are clean",
            source="nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
        ),
        Term(
            term="cordon",
            meaning="a person has taken the card out of service: tessera cordon",
            asks="nothing",
            reaction=f"{_TAKEN} until tessera uncordon; pods on it keep running, and nothing is done to it",
            source=_TESSERA,
        ),
        Term(
            term="preflight",
            meaning="the card is new, or was repaired by a reset or a boot, and has not passed its preflight since",
            asks="nothing; if the test fails, what the test says",
            reaction=f"{_TAKEN} until it passes; only where tessera-repairs says so",
            source=_TESSERA,
        ),
        Term(
            term="pod-preflight",
            meaning="the card, or a part of it, failed the test before the first container of a pod that asked for it",
            asks="a reset; if the test fails again after that, replace the card",
            reaction=f"{REACTIONS[Reaction.RESET]}; refuses the start of that pod",
            note="The driver asks for nothing: it did not see the error.",
            source=_TESSERA,
        ),
        Term(
            term="replace",
            meaning="three times in seven days, the card needed a reset or a reboot, or did not answer",
            asks="replace the card, or look at its slot, cooling and power",
            reaction="shows it with times and errors, and goes on to allocate the card; tessera cordon takes it away",
            note="Errors less than an hour apart count once, and those that the breaker spares do not count.",
            source=_TESSERA,
        ),
        Term(
            term="events",
            meaning="the errors of the card cannot be heard: the driver does not report them",
            asks="nothing",
            reaction="shows it, probes the card each 10 s, and goes on to allocate it",
            source=_TESSERA,
        ),
        Term(
            term="hw_slowdown",
            meaning="the hardware halves the clocks or more, for heat or since the power supply asks for it",
            asks="check cooling and power supply",
            reaction="shows it as long as it lasts",
            source=_NVML,
        ),
        Term(
            term="hw_thermal",
            meaning="the card is so hot that the hardware slows it down",
            asks="check cooling",
            reaction="shows it as long as it lasts",
            source=_NVML,
        ),
        Term(
            term="sw_thermal",
            meaning="the driver slows the card down to keep it below its temperature limit",
            asks="check cooling",
            reaction="shows it as long as it lasts",
            source=_NVML,
        ),
        Term(
            term="hw_power_brake",
            meaning="the server's power supply asks the card to slow down",
            asks="check the power supply and the power limit of the rack",
            reaction="shows it as long as it lasts",
            source=_NVML,
        ),
        Term(
            term="power_cap",
            meaning="the card draws as much power as it may, and clocks are lowered for that",
            asks="nothing; a full load commonly does this",
            reaction="none; tessera_gpu_throttled shows it, and a finding of the pod if it costs much speed",
            source=_NVML,
        ),
    )
}

_FINDINGS: Mapping[str, Term] = {
    kind: Term(
        term=kind,
        meaning=rule.meaning,
        asks=rule.advice,
        reaction="reports it as a finding of the pod, in tessera_pod_gpu_finding, and does nothing",
        source="docs/metrics.md of Tessera; the thresholds are Tessera's choice",
    )
    for kind, rule in {MEMORY_OVER_LIMIT: EXCESS, **RULES}.items()
}

#: The terms that are not numbers.
TERMS = (*_OTHERS, *_FINDINGS)


def explain_term(word: str) -> Term:
    """Explains a term: a number or ``XID`` with a number, or one of :data:`TERMS`.

    Raises:
        UnknownTermError: the word is no term.
    """
    text = word.strip().lower().replace(" ", "-")
    number = _XID.fullmatch(text)
    if number is not None:
        return explain_xid(int(number[1]))
    known = {**_OTHERS, **_FINDINGS}
    found = known.get(text) or known.get(text.replace("-", "_"))
    if found is None:
        raise UnknownTermError(
            f"{word!r} is no term of a card's health: use the number of an XID, or {', '.join(TERMS)}"
        )
    return found


def explain_xid(number: int) -> Term:
    """Explains an XID; one that the catalogue does not list too."""
    reaction = REACTIONS[HealthPolicy().reaction(number)]
    xid = XIDS.get(number)
    if xid is None:
        return Term(
            term=f"XID {number}",
            meaning="the catalogue that Tessera knows does not list it, or calls it unused",
            asks="nothing that is known here; see the catalogue of your driver",
            reaction=reaction,
            note=f"DP_DISABLE_HEALTHCHECKS={number} makes agents ignore it.",
            source=CATALOGUE_SOURCE,
        )
    note = _NOTES.get(number, "")
    if number in APPLICATION_XIDS and not note:
        note = "The card is well."
    return Term(
        term=f"XID {number}",
        name=xid.name,
        meaning=xid.text,
        asks=xid.remedy.value,
        reaction=reaction,
        note=note,
        source=CATALOGUE_SOURCE,
    )
