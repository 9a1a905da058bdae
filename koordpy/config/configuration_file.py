# SPDX-License-Identifier: Apache-2.0
"""Reads the configuration file, reports all its faults at once, and writes a configuration as a file.

Stages of `read_config`: parse the file; apply the flags that override fields; check types and names; check selectors
and constraints that an API server would reject (`field_hints.py`); check rules across several fields. A rule across
fields is skipped if one of its fields has a fault already. Source: kube-parity.md section 5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from koordpy.api.durations import duration_text
from koordpy.api.field_faults import Fault, InputFaultsError, key_path, literal
from koordpy.api.objects import PodSpec
from koordpy.api.quantity import is_extended
from koordpy.api.spelling import meant
from koordpy.config.configuration import RETRY_JITTER, KoordpyConfiguration
from koordpy.config.dra_settings import mapping_faults
from koordpy.config.gang_topology import scope_fault
from koordpy.config.node_failures import faults_across_fields
from koordpy.config.numa_settings import resource_faults
from koordpy.decoding.manifest_documents import read_documents
from koordpy.decoding.strict_decoding import decode, format_of

KUBE_SCHEDULER_NAME = PodSpec().scheduler_name
"""`default-scheduler`, the name of kube-scheduler."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag that overrides a field.

    name: such as `--kubeconfig`. path: names of the sections and of the field, as in the file. value: plain value, as
    in the file.
    """

    name: str
    path: tuple[str, ...]
    value: Any


def read_config(data: bytes, *, name: str, flags: Sequence[Flag] = ()) -> KoordpyConfiguration:
    """Returns the configuration in a file's bytes (YAML or JSON; empty: the defaults), with flags on top.

    Raises `InputFaultsError` with one line for each fault. name: name of the file, for messages. If it ends with
    `.json`, invalid JSON is a fault; otherwise such a text is read as YAML.
    """
    documents = list(read_documents(data, as_json=name.endswith(".json")))
    broken = [f"{name}: {document.fault}" for document in documents if document.fault]
    if broken:
        raise InputFaultsError(broken)
    if len(documents) > 1:
        raise InputFaultsError([f"{name}: expected one document, got {len(documents)}"])
    raw = _overlaid(documents[0].value if documents else {}, flags)
    read = decode(raw, KoordpyConfiguration, closed=True)
    # a warning counts as a fault here, because a setting must not be without effect
    told = {fault.path for fault in read.faults}
    faults = [*read.faults, *(doubt for doubt in read.doubts if doubt.path not in told)]
    if read.rest is not None:
        wrong = [fault.path for fault in faults]
        faults += [
            Fault(fields[0], text)
            for *fields, text in _across_fields(read.rest)
            if not any(_decides(path, field) for path in wrong for field in fields)
        ]
    if read.value is None or faults:
        raise InputFaultsError([_line(fault, name, flags) for fault in faults])
    return read.value


def load_config(path: str | None, *, flags: Sequence[Flag] = ()) -> KoordpyConfiguration:
    """Returns the configuration in a file (None: the defaults), with flags on top.

    Raises `InputFaultsError`, also if the file cannot be read.
    """
    try:
        data = b"" if path is None else Path(path).read_bytes()
    except OSError as fault:
        raise InputFaultsError([f"{path}: cannot be read: {fault.strerror or fault}"]) from None
    except ValueError as fault:
        raise InputFaultsError([f"{path!r}: cannot be read: {fault}"]) from None
    return read_config(data, name=path or "", flags=flags)


def _overlaid(raw: Any, flags: Sequence[Flag]) -> Any:
    """Returns the file's plain value with flags applied.

    A value that should be a mapping, but is not, is returned unchanged, so that its fault is reported later.
    """
    for flag in flags:
        section, *rest = flag.path
        if isinstance(raw, dict):
            inner = raw.get(section)
            below = [replace(flag, path=tuple(rest))]
            raw = {**raw, section: _overlaid({} if inner is None else inner, below) if rest else flag.value}
    return raw


def _line(fault: Fault, name: str, flags: Sequence[Flag]) -> str:
    """Returns a fault as a line. The line starts with the flag that set the value, or with the name of the file."""
    for flag in flags:
        if fault.path.partition("[")[0] == ".".join(flag.path):
            return f"{flag.name}: {fault.text}"
    return f"{name}: {fault}" if name else str(fault)


def dangers(config: KoordpyConfiguration) -> list[str]:
    """Returns warnings about valid settings that are harmful or have no effect, as `FIELD: TEXT`."""
    found = []
    if KUBE_SCHEDULER_NAME in config.scheduler_names:
        found.append(
            f"schedulerNames: kube-scheduler also serves {KUBE_SCHEDULER_NAME}, the name of pods without a"
            " schedulerName, so both would bind the same pods. Use it only if kube-scheduler does not run, or its"
            " profiles have other names"
        )
    where, trusted = config.quota.namespaces, config.quota.trusted_namespaces
    if where and trusted and not set(where) & set(trusted):
        found.append(
            "quota.trustedNamespaces: none of them is in quota.namespaces,"
            " so each ElasticQuota without a parent is ignored"
        )
    ignored = config.filters.node_resources_fit.ignored_resources
    found += [
        f"filters.nodeResourcesFit.ignoredResources: {name} is not an extended resource: the filter checks it anyway"
        for name in ignored
        if not is_extended(name)
    ]
    return found


def plain(config: KoordpyConfiguration) -> dict[str, Any]:
    """Returns the configuration as the plain values of a file, with durations as text.

    `read_config` returns an equal configuration for these values.
    """
    written: dict[str, Any] = _plain(inspect.type_info(KoordpyConfiguration), msgspec.to_builtins(config))
    return written


def _plain(info: inspect.Type, value: Any) -> Any:
    """Returns a value of a section as the file has it. info: type of the value."""
    if isinstance(info, inspect.StructType):
        fields = {part.encode_name: part.type for part in info.fields}
        return {name: _plain(fields[name], inner) for name, inner in value.items()}
    return duration_text(value) if format_of(info) == "duration" else value


def _decides(path: str, field: str) -> bool:
    """Returns True if a fault at `path` makes the value of `field` unknown.

    That is so if the fault is at the field, at a part of it, at its section, or at a misspelt name of the field.
    """
    (section, _, name), (its_section, _, its_name) = path.rpartition("."), field.rpartition(".")
    misspelt = section == its_section and meant(name, (its_name,), closed=True)
    return bool(misspelt) or field.startswith(path) or path.startswith(field)


def _across_fields(config: KoordpyConfiguration) -> Iterator[tuple[str, ...]]:
    """Yields faults that depend on several fields: (field at fault, the other fields, text)."""
    names = config.scheduler_names
    for i, name in enumerate(names):
        if name in names[:i]:
            yield f"schedulerNames[{i}]", "schedulerNames", f"{literal(name)} is given twice"
    lease, of_lease = config.leader_election, "leaderElection.{}".format
    if lease.lease_duration <= lease.renew_deadline:
        yield of_lease("leaseDuration"), of_lease("renewDeadline"), "must be longer than renewDeadline"
    if lease.renew_deadline <= lease.retry_period * RETRY_JITTER:
        text = f"must be longer than {RETRY_JITTER:g} times retryPeriod"
        yield of_lease("renewDeadline"), of_lease("retryPeriod"), text
    if config.pod_max_backoff < config.pod_initial_backoff:
        yield "podMaxBackoff", "podInitialBackoff", "must not be shorter than podInitialBackoff"
    if config.preemption.across_users == "any" and config.fairness.reclaim == "all":
        yield "preemption.acrossUsers", "fairness.reclaim", "any cannot be combined with fairness.reclaim: all"
    gathers = {"gangs.defaults": config.gangs.defaults.gather}
    gathers |= {key_path("gangs.namespaces", name): one.gather or () for name, one in config.gangs.namespaces.items()}
    for where, entries in gathers.items():
        for i, entry in enumerate(entries):
            if text := scope_fault(entry.rule):
                yield f"{where}.gather[{i}].scope", f"{where}.gather[{i}]", text
    yield from mapping_faults(config.dra)
    spread, of_spread = config.filters.pod_topology_spread, "filters.podTopologySpread.{}".format
    if spread.defaulting_type != "List" and spread.default_constraints:
        yield of_spread("defaultConstraints"), of_spread("defaultingType"), "needs defaultingType List"
    points = [point.utilization for point in config.scores.node_resources_fit.shape]
    if points != sorted(set(points)):
        yield "scores.nodeResourcesFit.shape", "utilization must rise from point to point"
    yield from faults_across_fields(config.autoscaling, config.repair)
    yield from resource_faults(config.numa)
