# SPDX-License-Identifier: Apache-2.0
"""A random cluster with the same work twice: once of a tenant `own-ns`, once of another whose every name is marked."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from koordpy.offline.preparing import Offline, prepared
from tests.cli.random_manifests import Cluster, cluster

Document = dict[str, Any]
OWN, OTHER = "own-ns", "zqx-ns"
MARK = "zqx"
"""In every name of the other tenant's."""
SHARED = ("Node", "Device", "PriorityClass", "ClusterNetworkTopology", "Namespace")
USER = "quota.scheduling.koordinator.sh/user"


def two_tenants(seed: int) -> Cluster:
    """Documents of both tenants. Pods of each have users of their own."""
    one = cluster(seed)
    shared = [document for document in one.documents if document["kind"] in SHARED]
    work = [document for document in one.documents if document["kind"] not in SHARED]
    names = sorted({document["metadata"]["name"] for document in work}, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, names))})(?![\w.-]|\": )")
    own = json.loads(json.dumps(work).replace('"default"', f'"{OWN}"').replace("default/", f"{OWN}/"))
    text = pattern.sub(rf"{MARK}-\1", json.dumps(work))
    other = json.loads(text.replace('"default"', f'"{OTHER}"').replace("default/", f"{OTHER}/"))
    for number, document in enumerate(own):
        _user(document, f"ann{number % 2}")
    for number, document in enumerate(other):
        _user(document, f"{MARK}user" if number % 2 else f"{MARK}-{number % 3}")
        document["metadata"].pop("uid", None)
    return Cluster([*shared, *own, *other], one.config, one.arguments)


def _user(document: Document, user: str) -> None:
    if document["kind"] == "Pod":
        document["metadata"].setdefault("labels", {}).setdefault(USER, user)


def loaded(one: Cluster, folder: Path) -> Offline:
    """The cluster, read as `koordpy simulate` reads it."""
    file, config = folder / "input.json", folder / "config.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": one.documents}))
    config.write_text(json.dumps(one.config))
    args = argparse.Namespace(
        paths=[str(file)], config=str(config), now="2026-01-01T00:00:00Z", scheduler_names=None, started=[]
    )
    return prepared(args)
