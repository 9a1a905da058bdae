"""What was delivered, on disk: a plugin that starts anew knows it before the kubelet asks again.

Source: gpu-topology.md section 10. Written whole and put in place by a rename, so that a crash leaves the old one or
the new one; a file that cannot be read is put aside and the kubelet's list alone counts.
"""

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from koordpy.agent.plugin.ledger import Delivery

logger = logging.getLogger(__name__)


def read_checkpoint(path: Path) -> tuple[Delivery, ...]:
    """The deliveries of the file; none where there is none."""
    try:
        rows = json.loads(path.read_bytes())
        return tuple(
            Delivery(tuple(row["offered"]), tuple(row["gpus"]), (row["pod"], row["container"])) for row in rows
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError) as fault:
        logger.error("%s cannot be read and is put aside: %s", path, fault)
        path.replace(path.with_suffix(".broken"))
        return ()


def write_checkpoint(path: Path, deliveries: Iterable[Delivery]) -> None:
    """Writes the deliveries; raises OSError. The file is on the disk before the kubelet hears of a delivery."""
    rows = [{"offered": d.offered, "gpus": d.gpus, "pod": d.slot[0], "container": d.slot[1]} for d in deliveries]
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(rows, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
