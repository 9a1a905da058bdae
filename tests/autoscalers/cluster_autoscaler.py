# SPDX-License-Identifier: Apache-2.0
"""For which pods cluster-autoscaler adds nodes: a reading of its source, because its module cannot be had.

Read at github.com/kubernetes-sigs/cluster-autoscaler, commit 33c3f97bf2749b1385d9223f1f8856fe345011f7:

- `pkg/utils/kubernetes/listers.go`: `AllPodLister.List` (pods of phase Succeeded and Failed are left out),
  `FilterOutPodsByScheduler`, `ArrangePodsBySchedulability`, `SchedulingGatedPods`;
- `pkg/core/static_autoscaler.go`: `listPods`, and `RunOnce`, which counts nominated pods as placed and treats
  unprocessed pods as unschedulable;
- `pkg/config/flags/flags.go`: `parseAllowedSchedulers`;
- `pkg/core/podlistprocessor/`: `filter_out_expendable.go` with `pkg/core/utils/expendable.go`, and
  `filter_out_daemon_sets.go` with `IsDaemonSetPod` of `pkg/utils/pod/pod.go`;
- `pkg/processors/provreq/pods_filter.go`, which runs with `--enable-provisioning-requests` only
  (`pkg/builder/autoscaler.go`);
- `pkg/processors/podinjection/`: `pod_injection_processor.go`, `pod_group.go` and `job_controller.go`, which run with
  `--enable-proactive-scaleup` only.

Not part of the reading, because these steps can only remove pods: pods that fit a node which the autoscaler sees as
free (`filter_out_schedulable.go`), pods younger than `--new-pod-scale-up-delay`, and limits of node groups.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = dict[str, Any]

CONSUMES = (
    "autoscaling.x-k8s.io/consume-provisioning-request",
    "cluster-autoscaler.kubernetes.io/consume-provisioning-request",
)
"""Annotations of pods that use the nodes of a ProvisioningRequest; the second one is deprecated."""
DAEMON = "cluster-autoscaler.kubernetes.io/daemonset-pod"


class Sorted(StrEnum):
    """How a pod is sorted."""

    FOREIGN = "foreign"
    """Finished, or of a scheduler that `--allowed-scheduler-names` does not list."""
    SCHEDULED = "scheduled"
    DELETED = "deleted"
    NOMINATED = "nominated"
    """Counts as placed on its nominated node."""
    UNSCHEDULABLE = "unschedulable"
    UNPROCESSED = "unprocessed"
    """Not yet seen by a scheduler of `--bypassed-scheduler-names`: treated as unschedulable."""
    IGNORED = "ignored"


@dataclass(frozen=True)
class Flags:
    """Flags that decide which pods get nodes, with their defaults."""

    bypassed_scheduler_names: frozenset[str] = frozenset()
    allowed_scheduler_names: frozenset[str] = frozenset()
    """Empty: all schedulers."""
    enable_provisioning_requests: bool = False
    expendable_pods_priority_cutoff: int = -10

    def __post_init__(self) -> None:
        if self.allowed_scheduler_names and not self.bypassed_scheduler_names <= self.allowed_scheduler_names:
            raise ValueError("--bypassed-scheduler-names should be a subset of --allowed-scheduler-names")


def sort(pod: Json, flags: Flags) -> Sorted:
    """Returns how a pod is sorted."""
    spec, status = pod["spec"], pod.get("status", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return Sorted.FOREIGN
    if flags.allowed_scheduler_names and spec.get("schedulerName") not in flags.allowed_scheduler_names:
        return Sorted.FOREIGN
    if spec.get("nodeName"):
        return Sorted.SCHEDULED
    if pod["metadata"].get("deletionTimestamp"):
        return Sorted.DELETED
    if status.get("nominatedNodeName"):
        return Sorted.NOMINATED
    found = _scheduled(pod)
    if found is not None and found["status"] == "False" and found.get("reason") == "Unschedulable":
        return Sorted.UNSCHEDULABLE
    untold = found is None or (found["status"] == "False" and not found.get("reason"))
    if untold and spec.get("schedulerName") in flags.bypassed_scheduler_names:
        return Sorted.UNPROCESSED
    return Sorted.IGNORED


def adds_nodes(pod: Json, flags: Flags) -> bool:
    """Returns True if nodes are added for a pod, unless it fits a node that the autoscaler sees as free."""
    if sort(pod, flags) not in (Sorted.UNSCHEDULABLE, Sorted.UNPROCESSED):
        return False
    priority = pod["spec"].get("priority")
    if priority is not None and priority < flags.expendable_pods_priority_cutoff:
        return False
    notes = pod["metadata"].get("annotations") or {}
    if flags.enable_provisioning_requests and any(key in notes for key in CONSUMES):
        return False
    owner = _controller(pod)
    return not (owner is not None and owner["kind"] == "DaemonSet") and notes.get(DAEMON) != "true"


def injected(pods: Sequence[Json], desired: Mapping[str, int], flags: Flags) -> dict[str, int]:
    """Returns how many copies of pods `--enable-proactive-scaleup` adds to the pods that need nodes.

    desired: uid of a Job, ReplicaSet or StatefulSet -> pods that it wants. Counted are its pods with a node, nominated
    pods, unschedulable pods and pods with scheduling gates. A pod with any other reason is missing in the count, so
    that a copy of it gets a node if the count is not zero.
    """
    counted = Counter(
        owner["uid"]
        for pod in pods
        if (owner := _controller(pod)) is not None
        and (
            sort(pod, flags) in (Sorted.SCHEDULED, Sorted.NOMINATED, Sorted.UNSCHEDULABLE, Sorted.UNPROCESSED)
            or (_scheduled(pod) or {}).get("reason") == "SchedulingGated"
        )
    )
    return {uid: most - counted[uid] for uid, most in desired.items() if 0 < counted[uid] < most}


def _scheduled(pod: Json) -> Json | None:
    """Returns the first condition PodScheduled; None without one."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == "PodScheduled"), None)


def _controller(pod: Json) -> Json | None:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller")), None)
