# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the checkpoint: the file of all deliveries, which a restarted plugin reads before it answers.

A delivery is the GPUs that a container got. Neither the kubelet nor the API server knows all deliveries exactly. The
file is written as a whole and renamed, so that a crash leaves the old or the new file. An unreadable file is renamed to
`.broken`; then deliveries are restored only from the kubelet's list. Rules: gpu-topology.md 10.
"""

import json
import logging
import os
from pathlib import Path

from koordpy.agent.plugin.delivery_ledger import DEFAULT_GRACE_SECONDS, Delivery, Ledger

logger = logging.getLogger(__name__)


def read_checkpoint(path: Path) -> Ledger:
    """Reads the ledger from a file; returns an empty ledger if the file does not exist or is unreadable."""
    try:
        raw = json.loads(path.read_bytes())
        deliveries = [
            Delivery(
                tuple(row["offered"]),
                tuple(row["gpus"]),
                (row["pod"], row["container"]),
                str(row.get("name", "")),
                float(row.get("graceSeconds", DEFAULT_GRACE_SECONDS)),
            )
            for row in raw["delivered"]
        ]
        return Ledger(deliveries, {uid: [tuple(one) for one in gpus] for uid, gpus in raw["exchanged"].items()})
    except FileNotFoundError:
        return Ledger()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as fault:
        logger.error("%s cannot be read and is renamed to .broken: %s", path, fault)
        path.replace(path.with_suffix(".broken"))
        return Ledger()


def write_checkpoint(path: Path, ledger: Ledger) -> None:
    """Writes a ledger. The file is on disk when this returns. Raises OSError."""
    rows = [
        {
            "offered": d.offered,
            "gpus": d.gpus,
            "pod": d.slot[0],
            "container": d.slot[1],
            "name": d.pod,
            "graceSeconds": d.grace_seconds,
        }
        for d in ledger.deliveries
    ]
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump({"delivered": rows, "exchanged": ledger.exchanged}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
