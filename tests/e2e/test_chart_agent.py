# SPDX-License-Identifier: Apache-2.0
"""The chart's DaemonSet: every option of `koordpy agent` can be had by a value, and what the pods are allowed."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from koordpy.cli.agent_command import add_arguments
from tests.e2e.chart import Denied, Helm

Json = dict[str, Any]

NOT_FOR_A_NODE = {"--help", "--print", "--once", "--node", "--kubeconfig"}
"""For a person before a terminal; the pod knows its node, and its account."""
EVERYTHING: Json = {
    "delivery": "device-plugin",
    "cdi": True,
    "backend": "fake:/etc/fake/machine.yaml",
    "measurements": "/etc/fake/measured.yaml",
    "gsocAnnotations": True,
    "poll": 2.5,
    "recoverAfter": 5,
    "ignoreXids": [13, 31],
    "resource": "example.com/gpu",
    "port": 12345,
}
PLUGIN: Json = {"delivery": "device-plugin"}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_arguments(made)
    return made


def daemon(helm: Helm, values: Json, **beside: Any) -> Json:
    """spec of the DaemonSet."""
    release = helm.render({"agent": {"enabled": True, **values}, **beside})
    found: Json = release.of("DaemonSet", component="agent")["spec"]
    return found


def container(spec: Json) -> Json:
    (found,) = spec["template"]["spec"]["containers"]
    return dict(found)


def test_every_option_of_the_agent_has_a_value_and_reads_it(helm: Helm) -> None:
    spec = daemon(helm, EVERYTHING, log={"level": "debug", "format": "text"})
    command, *flags = container(spec)["args"]
    assert command == "agent"
    options = {option for action in parser()._actions for option in action.option_strings if option.startswith("--")}
    # the nodes' folders are mounted where the agent looks for them
    assert {flag.partition("=")[0] for flag in flags} == options - NOT_FOR_A_NODE - {"--kubelet-folder"}
    read = vars(parser().parse_args(flags))
    assert {name: read[name] for name in ("delivery", "cdi", "backend", "measurements", "poll")} == {
        name: EVERYTHING[name] for name in ("delivery", "cdi", "backend", "measurements", "poll")
    }
    assert read["gsoc_annotations"]
    assert (read["recover_after"], read["ignore_xid"], read["resource"]) == (5, [13, 31], "example.com/gpu")
    assert (read["bind_address"], read["log_level"], read["log_format"]) == (":12345", "debug", "text")


def test_without_values_the_agent_has_the_defaults_of_its_own(helm: Helm) -> None:
    read = vars(parser().parse_args(container(daemon(helm, {}))["args"][1:]))
    own = vars(parser().parse_args([]))
    assert {name for name in own if read[name] != own[name]} == {"bind_address", "log_format"}


@pytest.mark.parametrize(
    ("values", "user"), [({}, 65532), (PLUGIN, 0), ({**PLUGIN, "podSecurityContext": {"runAsUser": 7}}, 0)]
)
def test_the_agent_is_root_only_where_the_kubelets_sockets_are_its_business_and_never_has_capabilities(
    values: Json, user: int, helm: Helm
) -> None:
    spec = daemon(helm, values)
    context = spec["template"]["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (user, user)
    assert context.get("runAsNonRoot", False) == (user > 0)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container(spec)["securityContext"]
    assert own["capabilities"] == {"drop": ["ALL"]} and not own["allowPrivilegeEscalation"]


def test_the_agents_pods_are_told_by_their_component_and_ready_when_the_agent_says_so(helm: Helm) -> None:
    spec = daemon(helm, PLUGIN)
    labels = spec["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "agent"
    # of a DaemonSet that is there already the selector cannot be changed
    assert set(spec["selector"]["matchLabels"]) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
    (port,) = container(spec)["ports"]
    assert container(spec)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}


@pytest.mark.parametrize(
    "values", [{"backend": "nvidia-smi"}, {"measurements": "here.yaml"}, {"poll": 0}, {"ignoreXids": ["13"]}]
)
def test_helm_refuses_what_the_agent_would_not_read(values: Json, helm: Helm) -> None:
    with pytest.raises(Denied, match=next(iter(values))):
        daemon(helm, values)


@pytest.mark.parametrize("asked", [False, True])
def test_an_agent_may_patch_nodes_only_where_the_annotations_are_asked_for(asked: bool, helm: Helm) -> None:
    release = helm.render({"agent": {"enabled": True, "gsocAnnotations": asked}})
    rules = release.of("ClusterRole", component="agent")["rules"]
    (verbs,) = [set(rule["verbs"]) for rule in rules if "nodes" in rule["resources"]]
    assert verbs == ({"get", "patch"} if asked else {"get"})
    policies = [one["metadata"]["name"] for one in release.objects if one["kind"] == "ValidatingAdmissionPolicy"]
    assert any(name.endswith("-agent-nodes") for name in policies) == asked
