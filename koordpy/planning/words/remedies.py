"""What would end each filter's refusal of a node: for `koordpy explain`, wouldFitIf (simulate.md 5.2)."""

from koordpy.planning.filters import gpu_devices
from koordpy.planning.filters.base import Code, Refusal

FIT, CORDONED, TAINTS, AFFINITY = "NodeResourcesFit", "NodeUnschedulable", "TaintToleration", "NodeAffinity"
_BY_PLUGIN = {
    CORDONED: "uncordon them",
    TAINTS: "tolerate the taint, or take it from the nodes",
    AFFINITY: "relax the pod's node selector or affinity, or label the nodes",
    "NodePorts": "ask for another host port, or wait for the pod that has it",
    "InterPodAffinity": "relax the rule, or wait until the pods it is about run or end",
    "PodTopologySpread": "raise maxSkew, or make room in the domains with fewest matching pods",
    "VolumeRestrictions": "wait until the pod that uses the volume ends",
    "NodeVolumeLimits": "wait for pods with volumes to end, or use fewer volumes",
    "VolumeBinding": "provide a volume or storage capacity that these nodes reach",
    "VolumeZone": "provide nodes in the volume's zone",
    "DynamicResources": "free devices that match the claim, or relax its selectors",
    gpu_devices.PLUGIN: "ask for a number or a bandwidth that the free GPUs have, or wait for GPUs to be given back",
    "AscendChips": "ask for a number of chips that the free ones of one node can form",
}
_NEVER = {
    FIT: "ask for less, or for larger nodes",
    "PodTopologySpread": "label the nodes, or spread over a key that they have",
    gpu_devices.PLUGIN: "ask for a number or a bandwidth that the node's healthy GPUs have",
}
"""Where no end of another pod helps."""
_BY_REASON = {
    "node(s) didn't match scheduler-enforced node affinity": "label the nodes, or relax filters.nodeAffinity",
    gpu_devices.NO_TABLE: "give the Device a partition table, or lift Honor",
    gpu_devices.UNSUPPORTED_NUMBER: "ask for a number of GPUs that the partition table lists",
    gpu_devices.NOT_INJECTED: "create the pod anew through the webhook",
    gpu_devices.NOT_BY_NAME: "let the agent report the node's GPUs, or wait for the pods that hold unnamed ones",
    gpu_devices.NOT_WRITTEN: "let the agent report the node's GPUs, or wait for the pods that hold unnamed ones",
}
_RELAX = "relax the pod's constraint or change the nodes"
_WAIT = "wait for pods there to end"


def remedy(refusal: Refusal) -> str:
    """What ends a refusal, its words before a colon: `REASON: REMEDY`."""
    reasons, never = refusal.reasons, refusal.code is Code.UNRESOLVABLE
    found = _BY_REASON.get(reasons[0]) or (_NEVER.get(refusal.plugin) if never else None)
    found = found or _BY_PLUGIN.get(refusal.plugin) or (_RELAX if never else _WAIT)
    return f"{', '.join(reasons)}: {found}"
