# SPDX-License-Identifier: Apache-2.0
"""Pictures of the page for docs/view.md: `python -m tests.docs.page_pictures docs` (`make picture`).

Some of the examples run, the others wait, and the plan of the next round is drawn. The same code gives the same page.
Chromium draws it at three widths, light and dark. The committed pictures have the font Inter (Debian's package
fonts-inter); without it another takes its place.
"""

import argparse
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from msgspec import structs

from koordpy.api import keys
from koordpy.api.times import rfc3339
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.observe.decision_log import DecisionLog
from koordpy.offline import offline_options
from koordpy.offline.preparing import Offline
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.simulated_rounds import simulate
from koordpy.view.live_documents import Planned, help_of
from koordpy.view.page_server import page_with
from koordpy.view.view_document import LiveDocument
from tests.docs.worked import ROOT
from tests.view.browser import Browser, found

RUNNING = ("prefer-gather", "must-gather", "pipeline-2x2", "gang-group", "master-workers", "elastic", "gpu-pair")
WAITING = ("multiples", "urgent", "does-not-fit")
OWNERS = {
    "prefer-gather": ("ada", 51), "must-gather": ("ada", 20), "pipeline": ("grace", 7), "multiples": ("grace", 0),
    "decode": ("alan", 96), "prefill": ("alan", 96), "master": ("mary", 5), "elastic": ("mary", 3),
}  # fmt: skip
"""Start of a pod's name -> its user, and the hours that it has run."""
SIZES = {"page": (1440, 900), "page-phone": (390, 844), "page-wide": (3840, 2160)}
CHOSEN = {"page-dark.png": "#gang=default/multiples", "page-wide-dark.png": "#gang=default/does-not-fit"}
NAMES = {f"{name}-{theme}.png": size for name, size in SIZES.items() for theme in ("light", "dark")}
"""File -> width and height."""
COLOURS = 256


def ready(names: tuple[str, ...]) -> Offline:
    """Examples on their cluster, each with an owner."""
    parser = argparse.ArgumentParser()
    offline_options.add_arguments(parser)
    words = []
    for name in ("cluster", *names):
        path = ROOT / "examples" / name
        words += ["-f", str(path if path.is_dir() else path.with_suffix(".yaml"))]
    made = offline_options.prepare(parser.parse_args(words))
    for info in list(made.state.pods()):
        user, _ = owner_of(info.name)
        labels = {**info.pod.metadata.labels, keys.QUOTA_USER: user}
        made.state.upsert(structs.replace(info.pod, metadata=structs.replace(info.pod.metadata, labels=labels)))
    return made


def owner_of(pod: str) -> tuple[str, int]:
    return next((owner for start, owner in OWNERS.items() if pod.startswith(start)), ("radia", 1))


def page() -> str:
    """The page of the examples."""
    before, now = ready(RUNNING), ready((*RUNNING, *WAITING))
    log, at = DecisionLog(), now.now.timestamp()

    def plan(snapshot: Snapshot, config: KoordpyConfiguration) -> RoundPlan:
        made = plan_round(snapshot, config)
        log.record(made, number=1, at=at - 60)
        return made

    ran = simulate(before.state, before.config, planner=plan, now=before.now, rounds=1)
    for one in ran.bindings:
        now.state.bind(one.pod_key, one.node, dict(one.annotations))
        info = now.state.pod(one.pod_key)
        assert info is not None
        start = rfc3339(at - 3600 * owner_of(info.name)[1])
        now.state.upsert(structs.replace(info.pod, status=structs.replace(info.pod.status, start_time=start)))
    snapshot = now.state.snapshot(at)
    told = Planned(now.config, source="examples, and what the next round would do")(snapshot)
    scene = LiveDocument(now.config)
    scene.update(snapshot, replace(told, decisions=log.last_decisions(), decided=log.decided))
    document = scene.whole()
    document["help"] = {one["unit"]: help_of(snapshot, now.config, one["unit"]) for one in document["queue"]["units"]}
    return page_with(orjson.dumps(document))


# -- small pictures ---------------------------------------------------------------------------------------------------


def pixels_of(data: bytes) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """[rows, columns, 3] of a PNG of eight bits a channel, as Chromium writes them."""
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (depth, kind in (2, 6)) == (8, True)
    packed, at = b"", 8
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += 12 + size
    each = 3 if kind == 2 else 4
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * each)
    out = np.zeros((height + 1, width + 1, each), np.int16)
    for y in range(height):
        rule, line = raw[y, 0], raw[y, 1:].reshape(width, each).astype(np.int16)
        above = out[y]
        if rule == 0:
            out[y + 1, 1:] = line
        elif rule == 1:
            out[y + 1, 1:] = np.cumsum(line, axis=0, dtype=np.int64) % 256
        elif rule == 2:
            out[y + 1, 1:] = (line + above[1:]) % 256
        else:
            _unfilter(out[y + 1], line, above, paeth=rule == 4)
    return out[1:, 1:, :3].astype(np.uint8)


def _unfilter(into: Any, line: Any, above: Any, *, paeth: bool) -> None:
    """The filters that need the pixel before."""
    for channel in range(line.shape[1]):
        left, up, before = 0, above[:, channel].tolist(), line[:, channel].tolist()
        found = [0]
        for x, step in enumerate(before, start=1):
            if paeth:
                guess = left + up[x] - up[x - 1]
                near = (abs(guess - left), abs(guess - up[x]), abs(guess - up[x - 1]))
                base = (left, up[x], up[x - 1])[near.index(min(near))]
            else:
                base = (left + up[x]) // 2
            left = (step + base) % 256
            found.append(left)
        into[:, channel] = found


def small(data: bytes) -> bytes:
    """The same picture as a PNG of 256 colours: those that are there most, each other one as the nearest of them."""
    pixels = pixels_of(data)
    height, width = pixels.shape[:2]
    codes = pixels.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    values, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    shades = np.stack([values >> 16, values >> 8 & 255, values & 255], axis=1).astype(np.int32)
    most = np.argsort(-counts, kind="stable")[:COLOURS]
    near = np.empty(len(values), np.uint8)
    for start in range(0, len(values), 4096):
        part = shades[start : start + 4096, None] - shades[None, most]
        near[start : start + 4096] = (part * part).sum(axis=2).argmin(axis=1)
    lines = near[inverse.reshape(height, width)]
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", shades[most].astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(raw, 9)),
        (b"IEND", b""),
    ]
    out = b"\x89PNG\r\n\x1a\n"
    for name, body in chunks:
        out += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return out


def draw(folder: Path) -> None:
    """Writes the pictures."""
    file = ROOT / "build" / "page.html"
    file.parent.mkdir(exist_ok=True)
    file.write_text(page(), encoding="utf-8")
    with Browser() as browser:
        for name, (width, height) in NAMES.items():
            address = f"file://{file}{CHOSEN.get(name, '')}"
            browser.open(address, width=width, height=height, dark=name.endswith("dark.png"))
            browser.until("performance.getEntriesByName('drawn').length")
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            browser.frames()
            browser.picture(folder / name)
            (folder / name).write_bytes(small((folder / name).read_bytes()))


if __name__ == "__main__":
    if not found():
        sys.exit("no chromium is here (Debian's package chromium)")
    draw(Path(sys.argv[1]))
