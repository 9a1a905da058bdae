# SPDX-License-Identifier: Apache-2.0
"""The page's document at size, what a reader costs the scheduler, and how soon and how fluently Chromium draws it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
from collections.abc import Iterator

import msgspec
import orjson

from bench import objects
from bench.timing import Row, against, milliseconds, timed
from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology
from koordpy.api.objects import Node
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.view.live_documents import Feed
from koordpy.view.page_server import page_of
from koordpy.view.view_document import LiveDocument, Remarks
from tests.clusters import training_cluster
from tests.view.browser import Browser, found

NODES, PODS, WAITING = 5000, 20_000, 640
SECONDS, CHANGED = 12.0, 20
"""For which a reader listens, and pods that change meanwhile in each."""
GPU = keys.GPU_RESOURCES[0]
CONFIG = KoordpyConfiguration()
FRAMES = """(async () => { const scroller = document.querySelector('#scroller'), took = [];
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    let last = await frame();
    for (let i = 0; i < 90; i++) {
        if (i % 30 === 29) document.querySelector(i % 60 === 29 ? '#out' : '#in').click();
        else scroller.scrollTop += 400;
        const now = await frame(); took.push(now - last); last = now;
    }
    return took.sort((a, b) => a - b); })()"""


def run() -> Iterator[Row]:
    """The rows."""
    state = _cluster()
    remarks = Remarks(source="bench")
    snapshot = state.snapshot(60.0)

    def written() -> bytes:
        kept = LiveDocument(CONFIG)
        kept.update(snapshot, remarks)
        return orjson.dumps(kept.whole())

    times, body = timed(written, 3)
    packed = len(gzip.compress(body, 6)) / 1e6
    what = f"{NODES:,} nodes, {NODES * 8:,} GPUs, {PODS:,} pods"
    bar = f"bar 6 MB {'holds' if packed < 6 else 'MISSED'}"
    yield (
        f"view: the document of {what}",
        milliseconds(min(times)),
        f"{against(1.0, min(times))}{len(body) / 1e6:.1f} MB, {packed:.2f} MB compressed: {bar}",
    )
    for name, changed in (("nothing changes", 0), (f"{CHANGED} pods change a second", CHANGED)):
        share, events = asyncio.run(_read(state, changed))
        bar = f"bar 1 % {'holds' if share < 0.01 else 'MISSED'}"
        yield f"view: the scheduler's cost with a reader, {name}", f"{share * 100:.2f} %", f"{bar}; {events} events"
    if not found():
        yield "view: first paint in Chromium", "NOT TRIED", "no chromium is here"
        return
    with Browser() as browser:
        page = page_of(Feed(lambda: (snapshot, remarks), CONFIG))
        url = browser.run(page.__aenter__())
        browser.open(url)
        drawn = browser.until("performance.getEntriesByName('drawn')[0]?.startTime") / 1000
        yield f"view: {what} drawn in Chromium", milliseconds(drawn), against(2.0, drawn).rstrip("; ")
        frames = browser.js(FRAMES)
        middle, worst = frames[len(frames) // 2] / 1000, frames[-1] / 1000
        note = f"{against(0.05, middle)}the longest {milliseconds(worst)}"
        yield "view: a frame while scrolling and zooming, in the middle", milliseconds(middle), note
        browser.run(page.__aexit__(None, None, None))


def _cluster() -> ClusterState:
    made = training_cluster(NODES, nodes_per_accelerator=4, accelerators_per_block=8, blocks_per_spine=16)
    state = make_state(gpu=CONFIG.gpu)
    state.upsert(msgspec.convert(made.topology, ClusterNetworkTopology, strict=False))
    for node in made.nodes:
        state.upsert(msgspec.convert(node, Node))
    for i in range(PODS):
        at = f"node-{i // 4}" if i < PODS - WAITING else ""
        state.upsert(objects.pod(f"g{i // 16}-{i % 16}", {GPU: "2", "cpu": "1"}, at=at, gang=f"g{i // 16}"))
    for i in range(PODS // 16):
        state.upsert(objects.group(f"g{i}", 16))
    return state


async def _read(state: ClusterState, changed: int) -> tuple[float, int]:
    """(share of a core, events) of a reader that listens while pods come and go."""
    feed = Feed(lambda: (state.snapshot(60.0), Remarks(source="bench")), CONFIG)
    events, own = 0, 0.0

    async def listen() -> None:
        nonlocal events
        async with contextlib.aclosing(feed.events()) as told:
            async for _ in told:
                events += 1

    listening = asyncio.create_task(listen())
    while not events:  # noqa: ASYNC110 - once, before anything is timed
        await asyncio.sleep(0.05)
    events, began, cpu = 0, time.monotonic(), time.process_time()
    for second in range(int(SECONDS)):
        mark = time.process_time()
        for i in range(changed):
            state.upsert(objects.pod(f"x{i}", {"cpu": "1"}, at=f"node-{(second * 7 + i) % NODES}"))
        own += time.process_time() - mark
        await asyncio.sleep(1.0)
    share = (time.process_time() - cpu - own) / (time.monotonic() - began)
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listening
    return share, events
