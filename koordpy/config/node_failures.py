# SPDX-License-Identifier: Apache-2.0
"""Settings of the sections `autoscaling` and `repair`: reasons of pending pods, and gangs that lose nodes.

Reasons: repair.md 1.2. Policies for broken gangs: repair.md 4.3.
"""

from collections.abc import Iterator
from re import fullmatch
from typing import Literal

import msgspec

from koordpy.api.field_faults import key_path, literal
from koordpy.api.object_names import OBJECT_NAME, LayerName
from koordpy.config.config_values import Count, Seconds, Section, Size

ReasonMode = Literal["honest", "upstream"]
RepairPolicy = Literal["replace", "regather", "wait"]


class Provisioning(Section, frozen=True):
    """ProvisioningRequests, by which gangs request nodes from an autoscaler."""

    mode: Literal["off", "annotated", "all"] = "off"
    class_: str = msgspec.field(name="class", default="best-effort-atomic-scale-up.autoscaling.x-k8s.io")
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    after: Seconds = 30.0  # time in which a gang must lack nodes before a request is created
    max_open: Size = 5
    retries: Count = 3
    backoff: Seconds = 60.0
    max_backoff: Seconds = 1800.0
    booking_time: Seconds = 600.0


class Autoscaling(Section, frozen=True):
    """What autoscalers can read from the conditions of pending pods."""

    reasons: ReasonMode = "honest"
    """Reasons of the condition PodScheduled=False. `honest`: the reason is Unschedulable only if a new node may help.
    `upstream`: it is Unschedulable for all pending pods except errors, as kube-scheduler writes it."""
    fixed_layers: tuple[LayerName, ...] = ()
    """Layers in which an autoscaler never adds nodes to existing domains."""
    provisioning: Provisioning = Provisioning()


class Rejections(Section, frozen=True):
    """How long nodes that reject pods are closed to similar pods (numa.md 8)."""

    backoff: Seconds = 120.0  # closure of a request shape on a node after its first rejection; 0: none is remembered
    max_backoff: Seconds = 3600.0  # maximum, because each further rejection doubles the closure
    shapes: int = 3  # rejected request shapes after which a node is closed to other shapes, too; 0 never


class Repair(Section, frozen=True):
    """What is done for gangs that lost members with their nodes."""

    policy: RepairPolicy = "replace"
    """What is done with a gang that has lost members if these members do not fit beside the live members."""
    seat_hold: Seconds = 300.0
    """Seconds for which seats (capacity for the missing members of a gang) are reserved."""
    lost_after: Seconds = 30.0
    """Seconds after which a node counts as lost if it has a NoExecute taint of the node controller, or a condition of
    `lostConditions`."""
    lost_conditions: tuple[str, ...] = ()
    """Types of node conditions that mark a node as lost while they are True."""
    sick_devices: Literal["tell", "evict"] = "tell"
    """What is done with members of gangs that use unhealthy devices. `tell`: they are reported. `evict`: they move to
    other nodes, if all such members of a gang find nodes beside its other members."""
    rejections: Rejections = Rejections()


def faults_across_fields(autoscaling: Autoscaling, repair: Repair) -> Iterator[tuple[str, ...]]:
    """Yields faults that depend on several fields: (field at fault, the other fields, text)."""
    own, shorter = autoscaling.provisioning, "must not be shorter than backoff"
    if own.max_backoff < own.backoff:
        yield "autoscaling.provisioning.maxBackoff", "autoscaling.provisioning.backoff", shorter
    if len(own.class_) > 253 or not fullmatch(OBJECT_NAME, own.class_):
        yield "autoscaling.provisioning.class", f"{literal(own.class_)} is no provisioning class name"
    if len(own.parameters) > 100:
        yield "autoscaling.provisioning.parameters", "at most 100 parameters"
    for name, value in own.parameters.items():
        if len(value) > 255:
            yield key_path("autoscaling.provisioning.parameters", name), "at most 255 characters"
    if autoscaling.reasons == "upstream" and own.mode != "off":
        text = "upstream does not go with provisioning"
        yield "autoscaling.reasons", "autoscaling.provisioning.mode", text
    if repair.rejections.shapes < 0:
        yield "repair.rejections.shapes", "must be 0 or more"
    if repair.rejections.max_backoff < repair.rejections.backoff:
        yield "repair.rejections.maxBackoff", "repair.rejections.backoff", shorter
