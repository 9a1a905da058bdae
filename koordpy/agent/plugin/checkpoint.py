"""What was delivered, on disk: a plugin that starts anew knows it before the kubelet asks again.

Source: gpu-topology.md 10. Written whole and put in place by a rename, so that a crash leaves the old one or
the new one; a file that cannot be read is put aside and the kubelet's list alone counts.
"""

import json
import logging
import os
from pathlib import Path

from koordpy.agent.plugin.delivery_ledger import DEFAULT_GRACE_SECONDS, Delivery, Ledger

logger = logging.getLogger(__name__)


def read_checkpoint(path: Path) -> Ledger:
    """The ledger of the file; an empty one where there is none."""
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
        logger.error("%s cannot be read and is put aside: %s", path, fault)
        path.replace(path.with_suffix(".broken"))
        return Ledger()


def write_checkpoint(path: Path, ledger: Ledger) -> None:
    """Writes what a ledger knows; raises OSError. The file is on the disk before the kubelet hears of a delivery."""
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
