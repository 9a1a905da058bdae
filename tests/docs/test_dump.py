"""The command that dumps a cluster names every kind that the offline commands read, served or not."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from koordpy.cli.main import main
from koordpy.offline.kinds import _KINDS
from koordpy.workloads.kinds.registry import GANG_KINDS, RUNTIMES, VOLCANO_GROUP, watched
from tests.docs.worked import ROOT
from tests.faults import FaultyServer

KUBECTL = shutil.which("kubectl")
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
NOT_DUMPED = {("", "ConfigMap")}
"""Those of kube-system are asked for beside it: the others are nobody's business."""


def command() -> str:
    """The pipeline of the page, from its first line to the one that writes cluster.json."""
    (found,) = re.findall(r"^    (kubectl api-resources .*?> cluster\.json)$", PAGE, re.M | re.S)
    return str(found)


def plural(kind: str) -> str:
    name = kind.lower()
    if name.endswith("s"):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def asked_for(names: list[str]) -> list[str]:
    """What the page's grep lets through."""
    words = command().partition("| ")[2].rpartition("| paste")[0]
    done = subprocess.run(["sh", "-c", words], input="\n".join(names), capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_it_asks_for_every_kind_that_is_read_and_no_other() -> None:
    kinds = dict.fromkeys(one for one in _KINDS if one not in NOT_DUMPED)
    kinds |= dict.fromkeys((one.group, one.kind) for one in watched(GANG_KINDS))
    kinds |= dict.fromkeys((*RUNTIMES, VOLCANO_GROUP))
    read = [".".join(filter(None, (plural(kind), group))) for group, kind in kinds]
    strange = ["secrets", "configmaps", "events", "pods.metrics.k8s.io", "nodes.metrics.k8s.io"]
    strange += ["cronjobs.batch", "deployments.apps", "daemonsets.apps"]  # their pods would be made, or are of others
    assert asked_for([*read, *strange]) == read


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on the PATH")
async def test_it_dumps_a_cluster_that_serves_not_all_of_them(tmp_path: Path) -> None:
    """And the dump is what simulate reads."""
    async with FaultyServer() as server:
        server.store.create("nodes", {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}})
        group = {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 1}}
        server.store.create("podgroups.scheduling.sigs.k8s.io", group)
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "HOME": str(tmp_path)}
        process = await asyncio.create_subprocess_exec("sh", "-c", command(), cwd=tmp_path, env=environment)
        assert await asyncio.wait_for(process.wait(), 120) == 0
    dumped = {item["kind"] for item in json.loads((tmp_path / "cluster.json").read_text())["items"]}
    assert {"Node", "PodGroup", "Namespace"} <= dumped
    assert main(["simulate", "-f", str(tmp_path / "cluster.json")]) == 0
