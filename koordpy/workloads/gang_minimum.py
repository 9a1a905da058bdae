# SPDX-License-Identifier: Apache-2.0
"""Determines minMember for each role of a workload: how many of its pods must start together, and by which setting.

The first setting that is present decides, in this order: StatefulSet with OrderedReady (always 1), annotation of the
role, total over all roles, elastic minimum of the kind. A total is distributed over the roles in their order: each role
takes at most its number of pods. The result may be above the number of pods that are wanted now; `workload_gangs.py`
reduces it then.

Source: workloads.md 5.2 and 8.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from koordpy.api.counted_nouns import count_noun
from koordpy.api.field_faults import literal
from koordpy.api.keys import GANG_MIN
from koordpy.decoding.annotation_settings import whole_number
from koordpy.workloads.workload_model import Role, Workload
from koordpy.workloads.workload_runs import WorkloadRun


@dataclass(frozen=True, slots=True)
class MinimumSetting:
    """The setting of a workload that states a minimum; or, if none does, the description of a setting that could."""

    name: str
    """`annotation KEY` or `spec.FIELD`; empty if no setting states the minimum."""
    number: int
    """The number that the setting states; 0 if no setting states one."""
    shares: tuple[tuple[str, int], ...]
    """(role, number of pods in the spec) of the roles that share a total, in their order. Empty for the annotation of a
    single role. If no setting states a total: all roles, because they would share one."""

    def shared(self, number: int) -> dict[str, int]:
        """Returns role -> its part of a total of `number` pods."""
        out = {}
        for role, most in self.shares:
            out[role] = min(most, number)
            number -= out[role]
        return out


@dataclass(frozen=True, slots=True)
class Minimum:
    """Minimum number of pods of one role. Callers reduce it to the number of pods that are wanted now."""

    number: int | None
    """The minimum; None for the default of the kind."""
    by: str = ""
    """The setting that states the number; empty for the default of the kind."""
    fault: str = ""
    """Why the setting cannot be read; such a fault blocks the gang. Empty for none."""
    doubt: str = ""
    """Warning that the setting may not be what its author intended; empty for none."""
    setting: MinimumSetting | None = None
    """The setting that states the minimum, or could; None if changing one setting has no known effect on the
    minimum."""


MIN_REPLICAS = "minReplicas"
"""Name of the elastic minimum of a role in messages."""
ANNOTATION, SPEC = "annotation ", "spec."
"""Prefixes of a setting in messages: an annotation, or a field of the spec."""
ORDERED = Minimum(1, doubt="podManagementPolicy OrderedReady makes pods one by one: its gang has minMember 1")


def _read(key: str, value: Any, most: int | None, title: str) -> Minimum:
    """Returns the minimum that a setting states, possibly with a fault.

    key: name with the prefix ANNOTATION or SPEC. value: text of an annotation, or any value of the spec. most: number
    of members above which the value is a fault; None for no limit. title: the workload or role, for faults.
    """
    number = whole_number(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool):
        fault = f"{literal(value)} is no whole number"
    elif most is not None and number > most:
        fault = f"{number} is more than the {count_noun(most, 'member')} of {title}"
    else:
        idle = key.startswith(ANNOTATION) and number <= 0  # valid, but probably not intended
        doubt = f"{key} is {value}: its pods start one by one" if idle else ""
        setting = MinimumSetting(key, number, ())
        return Minimum(max(0, number), key.removeprefix(ANNOTATION).removeprefix(SPEC), doubt=doubt, setting=setting)
    return Minimum(0, "", f"{key} cannot be read: {fault}")


def totals_of_others(workload: Workload, notes: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yields (annotation, value) of minimums for other schedulers; these annotations request a gang, too."""
    return ((key, one[key]) for key in workload.total_keys for one in notes if key in one)


def _total(run: WorkloadRun, own: Sequence[Mapping[str, str]], most: int | None, title: str) -> Minimum | None:
    """Returns the minimum over all roles; None if no setting states one.

    koordpy's annotation has precedence over annotations of other schedulers, these over fields of the spec, and these
    over the elastic minimum. own: annotations of pods and templates.
    """
    ours = ((GANG_MIN, one[GANG_MIN]) for one in run.notes if GANG_MIN in one)
    others = totals_of_others(run.workload, (*run.notes, *own))
    for key, value in chain(((ANNOTATION + key, text) for key, text in chain(ours, others)), run.workload.totals):
        return _read(key, value, most, title)
    if run.workload.total_least is not None:
        field, number = run.workload.total_least
        return _read(field, number, most, title)
    return None


def _filled(said: Minimum, number: int, roles: Iterable[Role]) -> Iterator[tuple[str, Minimum]]:
    """Distributes a minimum over roles: in their order, each role takes at most its number of pods."""
    for role in roles:
        share = min(role.number, number)
        number -= share
        yield role.name, replace(said, number=share)


def minima(run: WorkloadRun, roles: Sequence[Role], title: str, *, several: bool) -> dict[str, Minimum]:
    """Returns name of a role -> its minimum.

    roles: roles that this scheduler places. title: the workload, for faults. several: True if the spec has more than
    one role.
    """
    if run.workload.ordered:
        return {role.name: ORDERED for role in roles}
    most = _most(run, roles)
    own = _owns(run, roles, title, several=several)
    templates = [role.template.annotations for role in roles]
    total = _total(run, [*templates, *list(run.oldest.values())[:1]], most, title)
    shares = tuple((role.name, role.number) for role in roles)
    if total is None:
        unset = MinimumSetting("", 0, shares)
        return {
            role.name: own.get(role.name)
            or Minimum(role.least, MIN_REPLICAS, setting=unset if role.half_of is None else None)
            for role in roles
        }
    shared = None if own or total.setting is None else replace(total.setting, shares=shares)
    total, own = replace(total, setting=shared), {name: replace(one, setting=None) for name, one in own.items()}
    # roles with a minimum of their annotation keep it; the other roles share what is left of the total
    left = max(0, (total.number or 0) - sum(found.number or 0 for found in own.values()))
    return own | dict(_filled(total, left, (role for role in roles if role.name not in own)))


def _most(run: WorkloadRun, roles: Sequence[Role]) -> int | None:
    """Returns the number of pods above which a minimum is a fault; None if any minimum is valid."""
    # ReplicaSets are scaled without a change of their template, so a minimum above their size is no fault
    can_tell = run.workload.counted and not run.workload.caps_minimum
    return sum(role.number for role in roles) if can_tell else None


def _owns(run: WorkloadRun, roles: Sequence[Role], title: str, *, several: bool) -> dict[str, Minimum]:
    """Returns role -> the minimum in its annotations. Roles without the annotation are absent.

    If a role of the spec was split (leaders and followers), its minimum is distributed over both halves in order.
    """
    whole: dict[str, list[Role]] = {}  # role of the spec -> the roles that it was split into
    for role in roles:
        whole.setdefault(role.name if role.half_of is None else role.half_of, []).append(role)
    out: dict[str, Minimum] = {}
    for name, parts in whole.items():
        first = parts[0]
        text = next((one[GANG_MIN] for one in run.own_notes(first) if GANG_MIN in one), None)
        if text is None:
            continue
        most = _most(run, parts)
        found = _read(ANNOTATION + GANG_MIN, text, most, f"role {name}" if name and several else title)
        whole_role = replace(found, setting=None)
        out |= dict(_filled(whole_role, found.number or 0, parts)) if len(parts) > 1 else {first.name: found}
    return out
