# SPDX-License-Identifier: Apache-2.0
"""Decides for which units nodes are requested by a ProvisioningRequest, with which class and parameters (repair.md
3.1).

A unit asks for nodes if all its gangs do: by the annotation provisioning-class of the PodGroup or of the oldest pod, or
by the mode `all` of the configuration. The pods of such a unit do not get the reason Unschedulable, because an
autoscaler would then add the nodes a second time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from re import fullmatch

from koordpy.api import keys
from koordpy.api.custom_objects import ProvisioningRequest
from koordpy.api.field_faults import literal
from koordpy.api.natural_order import natural_key
from koordpy.api.object_names import OBJECT_NAME
from koordpy.cache.snapshot import Snapshot
from koordpy.config.node_failures import Provisioning
from koordpy.gangs.gang_reading import settings_of
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Unit
from koordpy.plan.wanted_nodes import PodSet, WantedNodes
from koordpy.provisioning.request_states import is_provisioned, newest_first, unit_of

OPTS_OUT = "none"
"""Value of the annotation provisioning-class with which a gang never asks for nodes."""
MOST_VALUE = 255
"""Maximum length of a parameter's value, by the API of ProvisioningRequests."""
MOST_SETS = 32
"""Maximum number of pod sets of a ProvisioningRequest, by its API."""
MOST_NAME = 253
"""Maximum length of an object's name."""
CLASS_KEY = keys.GANG_PROVISIONING_CLASS


@dataclass(frozen=True, slots=True)
class UnitRequest:
    """The nodes that one unit asks for, and warnings about its annotations."""

    wanted: WantedNodes | None
    """The nodes; None if the unit does not ask for nodes, or its annotations are invalid."""
    warnings: tuple[tuple[str, str], ...] = ()
    """Warnings: (object, text)."""


class Asking:
    """The units of one snapshot that ask for nodes."""

    def __init__(self, snapshot: Snapshot, settings: Provisioning) -> None:
        self._snapshot, self._settings = snapshot, settings

    @cached_property
    def requests(self) -> Mapping[str, list[ProvisioningRequest]]:
        """Names of a unit's gangs (`WantedNodes.title`) -> its requests, the highest attempt first. Requests of other
        programs are left out."""
        found: dict[str, list[ProvisioningRequest]] = {}
        for request in self._snapshot.provisioning_requests:
            if title := unit_of(request):
                found.setdefault(title, []).append(request)
        return {title: newest_first(own) for title, own in found.items()}

    def requests_of(self, unit: Unit) -> list[ProvisioningRequest]:
        """Returns the requests of a unit in its namespace, the highest attempt first."""
        own = self.requests.get(unit.group_id, ())
        return [one for one in own if one.metadata.namespace == unit.namespace]

    def request_of(self, unit: Unit) -> UnitRequest:
        """Returns the nodes that a unit with pending members asks for. A unit with live members asks for none."""
        if not self._snapshot.serves_provisioning or not unit.is_gang or not unit.pending or self._has_live(unit):
            return UnitRequest(None)
        gangs = sorted(unit.gangs, key=lambda gang: natural_key(gang.key))
        classes = [self._class_of(gang) for gang in gangs]
        if not all(classes):
            return UnitRequest(None)
        first = gangs[0].subject
        faults = [one for one in classes if not (len(one) <= MOST_NAME and fullmatch(OBJECT_NAME, one))]
        if faults:
            text = f"annotation {CLASS_KEY} cannot be read: {literal(faults[0])} is no provisioning class name"
            return UnitRequest(None, ((first, text),))
        if len({gang.ref.namespace for gang in gangs}) > 1:
            return UnitRequest(None, ((first, "gangs of several namespaces cannot share a ProvisioningRequest"),))
        sets = pod_sets(unit)
        if len(sets) > MOST_SETS:
            return UnitRequest(None, ((first, f"more than {MOST_SETS} kinds of pods"),))
        warnings: list[tuple[str, str]] = []
        wanted = WantedNodes(
            unit=unit.id,
            title=unit.group_id,
            namespace=gangs[0].ref.namespace,
            gang=gangs[0].key,
            class_name=classes[0],
            parameters=dict(sorted(self._parameters(gangs, warnings).items())),
            sets=sets,
        )
        if not has_valid_names(wanted, self._settings.retries + 1):
            return UnitRequest(None, ((first, "no ProvisioningRequest can be named after it"),))
        return UnitRequest(wanted, tuple(warnings))

    def _has_live(self, unit: Unit) -> bool:
        lost = self._snapshot.lost_nodes
        return any(
            pod.node in self._snapshot.index and not (pod.node in lost and lost[pod.node].loss_of(pod.pod) is not None)
            for gang in unit.gangs
            for pod in gang.bound
        )

    def _notes(self, gang: Gang) -> Mapping[str, str]:
        """Returns the annotations of a gang: those of its PodGroup; without one, of its workload and its oldest pod."""
        meta = settings_of(self._snapshot, gang.ref)
        own = meta.annotations if meta is not None else {}
        if gang.has_object or not gang.pods:
            return own
        return {**gang.oldest.pod.metadata.annotations, **own}

    def _class_of(self, gang: Gang) -> str:
        """Returns the provisioning class of a gang; empty if it does not ask."""
        said = self._notes(gang).get(CLASS_KEY, "")
        if said == OPTS_OUT:
            return ""
        return said or (self._settings.class_ if self._settings.mode == "all" else "")

    def _parameters(self, gangs: list[Gang], warnings: list[tuple[str, str]]) -> dict[str, str]:
        """Returns the parameters of a request. Annotations of gangs override the configuration; if several gangs set
        the same parameter, the first gang wins."""
        found = dict(self._settings.parameters)
        for gang in reversed(gangs):
            for name, value in self._own_parameters(gang):
                if len(value) > MOST_VALUE:
                    text = f"annotation {keys.PROVISIONING_PARAMETER}{name}: at most {MOST_VALUE} characters: ignored"
                    warnings.append((gang.subject, text))
                else:
                    found[name] = value
        return found

    def _own_parameters(self, gang: Gang) -> Iterator[tuple[str, str]]:
        prefix = keys.PROVISIONING_PARAMETER
        for key, value in self._notes(gang).items():
            if key.startswith(prefix) and len(key) > len(prefix):
                yield key.removeprefix(prefix), value

    def notes_of_bindings(self, unit: Unit) -> dict[str, str]:
        """Returns annotations for the Bindings of a unit's members. They name the request with nodes for these pods.

        Empty if no request of the unit is Provisioned (repair.md 3.3).
        """
        found = self.requests_of(unit) if self._settings.mode != "off" and unit.is_gang else []
        if not found or not is_provisioned(found[0], self._settings, self._snapshot.now):
            return {}
        return {
            keys.CONSUMES_REQUEST: found[0].metadata.name,
            keys.CONSUMES_CLASS: found[0].spec.provisioning_class_name,
        }


def pod_sets(unit: Unit) -> tuple[PodSet, ...]:
    """Returns the pending members of a unit, one set per shape, in the order of their lowest ranks."""
    kinds: dict[bytes, list[str]] = {}
    for pod in unit.pending:
        kinds.setdefault(pod.shape, []).append(pod.name)
    return tuple(PodSet(tuple(names)) for names in kinds.values())


def has_valid_names(wanted: WantedNodes, attempts: int) -> bool:
    """Returns True if the names of all objects of a unit's requests are valid. attempts: maximum number of attempts."""
    longest = wanted.template(attempts, max(0, len(wanted.sets) - 1))
    return len(longest) <= MOST_NAME and fullmatch(OBJECT_NAME, longest) is not None
