# SPDX-License-Identifier: Apache-2.0
"""Rows of units that are not decided, and of errors: Undetermined and SchedulerError (repair.md 1.2)."""

from typing import Any

from tests.autoscalers.rows import GPU, Json, Row, group, pod, running

UPSTREAM = "scheduling.k8s.io"
"""apiVersion of upstream PodGroups here; the version depends on that of Kubernetes."""
POLICY = "tests-no-binding"
"""Name of the admission policy that rejects the Binding of row `binding`."""
SIZES = (4, 6, 7, 4, 8)
"""Pods that do not fit three nodes of 10; on four nodes they do. Only the solver can prove the first."""


def undecided() -> list[Row]:
    """A gang for which the solver has no time. The empty cluster, which has a fourth node, holds it."""
    pods = [pod("undecided", str(i), gang=True, room={GPU: str(size)}) for i, size in enumerate(SIZES)]
    return [
        Row(
            "undecided",
            "Undetermined",
            [running("undecided", room={GPU: "10"}), group("undecided", len(SIZES)), *pods],
            nodes=({},) * 4,
            room={GPU: "10"},
            text="not decided in time",
        )
    ]


def errors() -> list[Row]:
    """Units with the reason SchedulerError."""
    error = "SchedulerError"
    many = {"gang": {"minCount": 2}}
    return [
        Row(
            "mixed",
            error,
            [_upstream("mixed", many), _upstream_pod("mixed", 0), _upstream_pod("mixed", 1, priorityClassName="high")],
            text="members differ in priority",
        ),
        Row("binding", error, [pod("binding")], text="the tests reject this Binding"),
    ]


def _upstream(name: str, policy: Json) -> Json:
    return {
        "apiVersion": UPSTREAM,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": policy},
    }


def _upstream_pod(row: str, number: int, **spec: Any) -> Json:
    return pod(row, str(number), schedulingGroup={"podGroupName": row}, **spec)


def policy() -> tuple[Json, Json]:
    """An admission policy that rejects the Binding of row `binding`, and its binding."""
    kind = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    validation = {"expression": "object.metadata.name != 'binding'", "message": "the tests reject this Binding"}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [validation],
    }
    bound = {"policyName": POLICY, "validationActions": ["Deny"]}
    made = {"apiVersion": kind, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": POLICY}, "spec": spec}
    return made, {**made, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound}
