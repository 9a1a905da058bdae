# SPDX-License-Identifier: Apache-2.0
"""What helm's notes say of quotas on a real API server: which accounts may write them, what a change of values does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chart import CHART, Denied, Helm
from tests.e2e.client import Client
from tests.e2e.controlplane import ControlPlane

QUOTAS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{}/elasticquotas"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
Notes = Callable[..., str]


@pytest.fixture
async def teams(api: Client, crds: list[str], namespace: str) -> AsyncIterator[tuple[str, str]]:
    """The namespace of administrators and that of a team, with a quota each."""
    team = await api.make_namespace(f"{namespace}-team")
    for where, name in ((namespace, "admins-quota"), (team, "teams-quota")):
        meta = {"name": name}
        head = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": meta}
        await api.create(QUOTAS.format(where), {**head, "spec": {"max": {"cpu": "1"}}})
    yield namespace, team
    for where, name in ((namespace, "admins-quota"), (team, "teams-quota")):
        await api.delete(f"{QUOTAS.format(where)}/{name}")


@pytest.fixture
def notes(helm: Helm, plane: ControlPlane, namespace: str) -> Any:
    """Runs helm; what its notes say."""
    kubeconfig: Path = plane.kubeconfig()

    def run(verb: str, *flags: str, reads: bool = True, **quota: Any) -> str:
        values = {"image": {"repository": "koordpy"}, "config": {"quota": quota}, "notes": {"readCluster": reads}}
        words = (verb, "quotas", CHART, "--namespace", namespace, "--kubeconfig", kubeconfig, *flags)
        return helm.call(*words, values=values).partition("\nNOTES:\n")[2]

    yield run
    with contextlib.suppress(Denied):  # where nothing was installed
        helm.call("uninstall", "quotas", "--namespace", namespace, "--kubeconfig", kubeconfig)


async def test_notes_name_the_accounts_that_may_write_quotas(api: Client, teams: tuple[str, str], notes: Notes) -> None:
    _, team = teams
    writes = {"apiGroups": ["scheduling.sigs.k8s.io"], "resources": ["elasticquotas"], "verbs": ["get", "create"]}
    reads = {**writes, "verbs": ["get", "list", "watch"]}
    roles = f"{RBAC}/namespaces/{team}/roles"
    for name, rule in (("writer", writes), ("reader", reads)):
        await api.create(roles, {"metadata": {"name": name}, "rules": [rule]})
        subject = {"kind": "User", "name": f"{name}-user", "apiGroup": "rbac.authorization.k8s.io"}
        ref = {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
        body = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}
        await api.create(f"{RBAC}/namespaces/{team}/rolebindings", body)
    said = notes("install", "--dry-run=server")
    assert "ElasticQuotas in all namespaces apply" in said
    assert f"\n  User writer-user, in namespace {team} (Role writer)\n" in said
    assert "\n  Group system:masters, in every namespace (ClusterRole cluster-admin)\n" in said
    assert "reader-user" not in said and "WARNING" not in said and "\n\n\n" not in said
    blind = notes("install", "--dry-run=server", reads=False)
    assert "writer-user" not in blind and "kubectl auth can-i create elasticquotas" in blind


async def test_quotas_that_would_not_count_are_named_before_an_upgrade(
    api: Client, teams: tuple[str, str], notes: Notes
) -> None:
    admins, team = teams
    said = notes("install", namespaces=[admins])
    assert f"ElasticQuotas are only honoured in namespace {admins}" in said
    assert "WARNING: ElasticQuotas that this configuration ignores" in said and f"\n  {team}: teams-quota\n" in said
    assert f"\n  {admins}:" not in said

    opened = notes("upgrade", "--dry-run=server")
    assert "WARNING: ElasticQuotas that were ignored before this upgrade" in opened
    assert f"\n  {team}: teams-quota\n" in opened and f"config.quota.namespaces: [{admins}]" in opened

    notes("upgrade")
    assert "WARNING" not in notes("upgrade", "--dry-run=server")
    closed = notes("upgrade", "--dry-run=server", namespaces=[team])
    assert f"\n  {admins}: admins-quota\n" in closed and f"\n  {team}:" not in closed
    assert "helm upgrade --dry-run=server" in closed
