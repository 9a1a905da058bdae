# SPDX-License-Identifier: Apache-2.0
"""The page in a browser: what a person sees of the demo, of 5,000 nodes and of an empty cluster, and does by keys."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from bench import objects
from koordpy.api import keys
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    ClusterNetworkTopologySpec,
    Device,
    DeviceEntry,
    DeviceMatrices,
    DeviceMatrix,
    DeviceSpec,
    ElasticQuota,
    ElasticQuotaSpec,
    HierarchyEntry,
)
from koordpy.api.objects import ObjectMeta, OwnerReference, Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.observe.decision_log import Decision, PodOnNode
from koordpy.view.document_rows import PlannedPlace, Remarks
from koordpy.view.live_documents import CHANGE, WHOLE, Event, Feed, NotReadyError, Planned
from koordpy.view.page_server import SourceError, page_of, page_with
from koordpy.view.view_document import LiveDocument
from tests.view.browser import Browser

GPU = keys.GPU_RESOURCES[0]
CONFIG = KoordpyConfiguration()
LIVE = "document.querySelector('#live').dataset.state === 'live'"


@pytest.fixture(scope="module")
def demo(browser: Browser) -> Iterator[str]:
    """Address of the demo's page, at its end."""
    command = [sys.executable, "-m", "koordpy", "demo", "--headless", "--keep"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as run:
        assert run.stdout is not None
        url = ""
        for line in run.stdout:
            url = line.partition("web UI: ")[2].strip() or url
            if "checks passed" in line:
                break
        yield url
        run.terminate()


@pytest.fixture
def serve(browser: Browser) -> Iterator[Any]:
    """Serves a source; its address."""
    stack = AsyncExitStack()

    def start(source: Any, address: str = "127.0.0.1:0") -> str:
        return browser.run(stack.enter_async_context(page_of(source, address)))

    yield start
    browser.run(stack.aclose())


def quiet(browser: Browser, url: str) -> None:
    """Nothing went wrong, and nobody else was asked."""
    assert browser.errors == []
    assert all(one.startswith((url, "data:")) for one in browser.requests), browser.requests


def legend(browser: Browser) -> dict[str, int]:
    found = browser.js(
        "[...document.querySelectorAll('#legend [data-kind]')].map((one) => [one.dataset.kind, one.innerText])"
    )
    return {kind: int(text.rpartition(" ")[2]) for kind, text in found}


def state_of(*things: Any) -> ClusterState:
    state = make_state(gpu=CONFIG.gpu)
    for one in things:
        state.upsert(one)
    return state


def feed_of(state: ClusterState, now: float = 60.0) -> Feed:
    snapshot, teller = state.snapshot(now), Planned(CONFIG, source="a test")
    return Feed(lambda: (snapshot, teller), CONFIG)


def node(name: str) -> Any:
    return objects.node(name, {GPU: "8", "cpu": "64", "memory": "512Gi"})


def gpu_pod(name: str, gpus: int = 8, **rest: Any) -> Any:
    return objects.pod(name, {GPU: str(gpus), "cpu": "1"}, **rest)


# -- the demo ---------------------------------------------------------------------------------------------------------


def test_the_demo_is_seen(browser: Browser, demo: str) -> None:
    browser.open(demo)
    browser.until(LIVE)
    browser.frames()
    counts = legend(browser)
    assert sum(counts.values()) == 512
    assert counts["free"] == 117
    assert counts["bound"] == 395
    assert "64 nodes, 512 accelerators" in browser.text("#source")
    assert browser.text("#roomline").startswith("2 × 8 GPUs in accelerator-19 · 7 × 8 in block-7")
    rooms = browser.js(
        "[...document.querySelectorAll('#slots tr')].map((one) => [...one.cells].map((cell) => cell.textContent))"
    )
    assert rooms[0] == ["layer", "largest gang", "domain", "gangs of 8", "gangs of 64", "gangs of 512"]
    assert rooms[1] == ["cluster", "13 × 8", "–", "13", "1", "0"]
    assert len(rooms) == 6
    queue = browser.text("#queue")
    assert "2 units waiting" in queue
    assert "default/does-not-fit" in queue
    assert "12 pods of 8 nvidia.com/gpu" in queue
    messages = browser.js("doc.queue.units.map((one) => one.message)")
    assert all("0/64 nodes are available" in one for one in messages)
    assert all(one.partition(". ")[0] in queue for one in messages), "the first sentence is whole"
    free, bound, other = browser.shown("node-1", 3), browser.shown("node-2", 0), browser.shown("node-8", 0)
    assert len(set(free)) < 6  # an outline on the panel
    assert max(set(bound), key=bound.count) != max(set(other), key=other.count), "two gangs, two colours"
    assert max(set(bound), key=bound.count) not in free
    quiet(browser, demo)


def test_a_waiting_gang_says_what_would_help_and_lights_up_its_domains(browser: Browser, demo: str) -> None:
    browser.open(demo)
    browser.until(LIVE)
    before = browser.js("document.querySelector('#tree').toDataURL()")
    browser.click_on("#queue [data-id='gang:default/does-not-fit']")
    help_text = browser.until("document.querySelector('#selected .help')?.innerText")
    assert "blockLayer" in help_text
    assert "blockLayer" in browser.text("#selected .domains")
    assert browser.js("location.hash") == "#gang=default/does-not-fit"
    browser.frames()
    assert browser.js("document.querySelector('#tree').toDataURL()") != before
    quiet(browser, demo)


def test_a_link_to_a_gang_shows_its_ranks_in_network_order(browser: Browser, demo: str) -> None:
    browser.open(f"{demo}#gang=default/prefer-gather")
    browser.until(LIVE)
    ranks = browser.text("#selected .ranks").split()
    assert ranks == [
        word for i in range(4) for word in (f"dc-0/spine-0/block-0/accelerator-{(i + 2) // 2}/node-{i + 2}", str(i))
    ]
    browser.frames()
    mine, others = browser.shown("node-2", 0), browser.shown("node-8", 0)
    assert len(mine) > 0
    strong = max(set(mine), key=mine.count)
    faint = max(set(others), key=others.count)
    spread = lambda colour: max(colour) - min(colour)  # noqa: E731 - others fade
    assert spread(strong) > spread(faint)
    quiet(browser, demo)


def test_colours_follow_the_choice_and_the_theme(browser: Browser, demo: str) -> None:
    browser.open(demo)
    browser.until(LIVE)
    browser.frames()
    by_gang = {tuple(browser.shown(name, 0)[0]) for name in ("node-2", "node-8", "node-26")}
    assert len(by_gang) == 3
    browser.js(
        "(() => { const by = document.querySelector('#colour'); by.value = 'user';"
        " by.dispatchEvent(new Event('change')); })()"
    )
    browser.frames()
    assert len({tuple(browser.shown(name, 0)[0]) for name in ("node-2", "node-8", "node-26")}) == 1
    assert "default 395" in browser.text("#keys")
    light = browser.js("getComputedStyle(document.body).backgroundColor")
    browser.click_on("#theme")
    assert browser.js("getComputedStyle(document.body).backgroundColor") != light
    browser.open(demo, dark=True)
    browser.until(LIVE)
    assert browser.js("document.documentElement.dataset.theme") in ("dark", "light")
    browser.js("localStorage.clear()")
    quiet(browser, demo)


def test_quotas_and_decisions_are_seen(browser: Browser, demo: str) -> None:
    browser.open(demo)
    browser.until(LIVE)
    browser.click_on("nav [data-for=quotas]")
    quotas = browser.text("#quotas")
    assert "koordinator-default-quota" in quotas
    assert "used 395 · request" in quotas
    assert "using 395 of" in quotas
    browser.click_on("nav [data-for=decisions]")
    count = browser.js("Number(document.querySelector('#slider').max)")
    assert count > 10
    browser.js("document.querySelector('#slider').focus()")
    seen = set()
    for _ in range(count):
        browser.key("ArrowLeft")
        seen.add(browser.text("#moment [aria-current]").replace("\n", " ").split(" ", 1)[0])
        words = browser.text("#moment [aria-current]")
        if "evicted" in words:
            assert "default/elastic" in words
            assert "default/urgent" in words
            break
    else:
        raise AssertionError(f"no eviction among {seen}")
    quiet(browser, demo)


def test_the_keyboard_alone_is_enough(browser: Browser, demo: str) -> None:
    browser.open(demo)
    browser.until(LIVE)
    browser.key("/")
    browser.type("master")
    assert "gang default/master-workers" in browser.text("#results")
    browser.key("Enter")
    assert "gang default/master-workers" in browser.text("#selected")
    browser.js("document.activeElement.blur()")
    browser.key("Escape")
    assert browser.js("document.querySelector('#selected').hidden")
    for _ in range(30):  # Tab reaches the tree
        browser.key("Tab")
        if browser.js("document.activeElement.id") == "tree":
            break
    assert browser.js("document.activeElement.id") == "tree"
    assert "the cluster" in browser.text("#here")
    for _ in range(5):
        browser.key("ArrowDown")
    assert browser.text("#here").startswith("node-0: ")
    browser.key("ArrowRight")
    assert browser.text("#here").startswith("node-1: 8 free")
    browser.key("Enter")
    assert "node node-1" in browser.text("#selected")
    tall = browser.js("document.querySelector('#spacer').offsetHeight")
    browser.key("Home")
    browser.key("ArrowLeft")
    browser.frames()
    assert browser.js("document.querySelector('#spacer').offsetHeight") < tall / 4, "the cluster is closed"
    browser.key("ArrowRight")
    browser.frames()
    browser.key("+")
    browser.frames()
    assert browser.js("document.querySelector('#spacer').offsetHeight") > tall
    quiet(browser, demo)


@pytest.mark.parametrize(("width", "height"), [(320, 640), (768, 900), (3840, 2160)])
def test_every_part_is_reached_at_every_width(browser: Browser, demo: str, width: int, height: int) -> None:
    browser.open(demo, width=width, height=height)
    browser.until(LIVE)
    for part in ("tree", "queue", "quotas", "decisions"):
        tab = f"nav [data-for={part}]"
        if browser.js(f"document.querySelector('{tab}').offsetParent !== null"):
            browser.click_on(tab)
        panel = "map" if part == "tree" else part
        box = browser.js(
            f"(() => {{ const box = document.querySelector('#{panel}').getBoundingClientRect();"
            " return [box.x, box.width, box.height]; })()"
        )
        assert box[0] >= 0
        assert box[0] + box[1] <= width
        assert box[2] > 100
        assert browser.js("document.documentElement.scrollWidth") <= width, "nothing is cut off sideways"
    quiet(browser, demo)


# -- states, links, an empty cluster, a large one ---------------------------------------------------------------------


def test_states_are_told_apart_without_colour(browser: Browser, serve: Any) -> None:
    other = gpu_pod("other", at="n2")
    held = gpu_pod("held")
    ending = gpu_pod("ending", at="n5")
    entries = [DeviceEntry(type="gpu", minor=i, id=f"GPU-{i}", health=i != 5) for i in range(8)]
    cordoned = node("n4")
    state = state_of(
        *(node(f"n{i}") for i in (0, 1, 2, 3, 5, 6, 7, 8)),
        structs.replace(cordoned, spec=structs.replace(cordoned.spec, unschedulable=True)),
        gpu_pod("bound", at="n1"),
        structs.replace(other, spec=structs.replace(other.spec, scheduler_name="default-scheduler")),
        structs.replace(held, status=structs.replace(held.status, nominated_node_name="n3")),
        structs.replace(ending, metadata=structs.replace(ending.metadata, deletion_timestamp="2026-01-01T00:00:00Z")),
        Device(metadata=ObjectMeta(name="n6"), spec=DeviceSpec(devices=entries)),
        gpu_pod("victim", at="n8"),
        gpu_pod("next"),
        gpu_pod("after", priority=9),
    )
    gone = PodOnNode("default/victim", "n8", "priority")
    plan = Decision(1, 60.0, "default/after", 1, 0, "feasible", None, ("n8",), "", "default/after", (gone,))
    planned = {"default/next": PlannedPlace("n7"), "default/after": PlannedPlace("n8", evicts=True)}
    snapshot = state.snapshot(60.0)
    told = Remarks(source="a test", planned=planned, plans=(plan,))
    url = serve(Feed(lambda: (snapshot, told), CONFIG))
    browser.open(url)
    browser.until(LIVE)
    browser.frames()
    counts = {"free": 15, "bound": 8, "held": 8, "other": 8, "ending": 8, "sick": 1, "cordoned": 8}
    assert legend(browser) == {**counts, "planned": 8, "leaving": 8}

    def form(name: str, cell: int) -> tuple[bool, ...]:
        """Which pixels of a cell are not its ground, whatever their colour."""
        pixels = browser.shown(name, cell)
        empty = browser.shown("n0", 0)
        ground = empty[len(empty) // 2 + 12]  # the middle of a free one
        return tuple(sum(abs(a - b) for a, b in zip(one, ground, strict=True)) > 60 for one in pixels)

    places = {"free": ("n0", 1), "bound": ("n1", 1), "other": ("n2", 1), "held": ("n3", 1), "ending": ("n5", 1)}
    places |= {"sick": ("n6", 5), "cordoned": ("n4", 1), "planned": ("n7", 1), "leaving": ("n8", 1)}
    seen = {kind: form(name, cell) for kind, (name, cell) in places.items()}
    assert len(set(seen.values())) == len(seen)
    quiet(browser, url)


def test_the_weakest_links_of_a_gang_are_a_matrix(browser: Browser, serve: Any) -> None:
    links = [
        ["X", "NV12", "SYS", "SYS"],
        ["NV12", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "NV12"],
        ["SYS", "SYS", "NV12", "X"],
    ]
    entries = [DeviceEntry(type="gpu", minor=i, id=f"GPU-{i}", health=True) for i in range(4)]
    matrix = DeviceMatrices(gpu=[DeviceMatrix(name="links", topology=json.dumps(links))])
    allocation = {keys.GPU_ALLOCATION: json.dumps({"allocatedGPUs": {"main": [0, 1, 2]}})}
    state = state_of(
        objects.node("n0", {GPU: "4", "cpu": "64"}),
        Device(metadata=ObjectMeta(name="n0"), spec=DeviceSpec(devices=entries, topologies=matrix)),
        objects.group("g", 1),
        gpu_pod("g-0", 3, at="n0", gang="g", annotations=allocation),
    )
    url = serve(feed_of(state))
    browser.open(f"{url}#gang=default/g")
    browser.until(LIVE)
    text = browser.text("#selected")
    assert "Slowest link" in text
    assert browser.js("document.querySelectorAll('#selected .links .weak').length") == 4
    quiet(browser, url)


def test_an_empty_cluster_says_so(browser: Browser, serve: Any) -> None:
    url = serve(feed_of(make_state()))
    browser.open(url)
    browser.until(LIVE)
    assert "No pending gangs or pods." in browser.text("#queue")
    assert "0 nodes, 0 accelerators" in browser.text("#source")
    assert set(legend(browser).values()) == {0}
    browser.js("document.querySelector('#tree').focus()")
    browser.key("ArrowDown")
    browser.click_on("nav [data-for=decisions]")
    assert "No decisions yet." in browser.text("#decisions")
    quiet(browser, url)


def test_five_thousand_nodes_and_a_hundred_thousand_pods_are_drawn(browser: Browser, tmp_path: Path) -> None:
    names = [f"node-{i}" for i in range(5000)]
    starts = list(range(0, 5000, 8))
    document = document_of(make_state())
    racks = {"names": [f"rack-{i}" for i in range(len(starts))], "starts": starts}
    document["tree"] = {"layers": ["cluster", "rack", "node"], "domains": [{"names": [""], "starts": [0]}, racks]}
    document["tree"]["nodes"] = names
    document["nodes"] = {name: [8, "", [], None, "gpu"] for name in names}
    for i in range(100_000):
        at, state = (names[i // 8], "r") if i < 39_000 else ("", "w")
        document["pods"][f"default/p{i}"] = [at, f"default/g{i // 64}", i % 64, 1, None, state, 0, "u", "q"]
    file = tmp_path / "large.html"
    file.write_text(page_with(json.dumps(document).encode()), encoding="utf-8")
    browser.open(f"file://{file}")
    browser.until("document.querySelector('#live').dataset.state === 'still'")
    browser.frames()
    assert legend(browser) | {"free": 1000, "bound": 39_000} == legend(browser)
    assert "100000 pods" in browser.text("#source")
    assert len(browser.shown("node-0", 0)) > 0
    browser.js("document.querySelector('#scroller').scrollTop = 1e9")
    browser.frames()
    assert browser.pixels("node-0", 0) == []
    last = browser.shown("node-4999", 7)
    assert len(last) > 0
    browser.key("/")
    browser.type("p99999")
    assert "pod default/p99999" in browser.text("#results")
    quiet(browser, f"file://{file}")


# -- bad input --------------------------------------------------------------------------------------------------------


class Scripted:
    """A source that says what it is told to."""

    def __init__(self, *events: Event | Exception) -> None:
        self.said = list(events)

    async def document(self) -> bytes:
        raise NotReadyError("not asked for")

    async def explain(self, unit: str) -> bytes:
        return b"{}"

    async def events(self) -> Any:
        for one in self.said:
            if isinstance(one, Exception):
                raise one
            yield one
        await asyncio.sleep(60)


def document_of(state: ClusterState) -> dict[str, Any]:
    kept = LiveDocument(CONFIG)
    kept.update(state.snapshot(0.0), Remarks(source="s"))
    found: dict[str, Any] = json.loads(json.dumps(kept.whole()))
    return found


EVIL = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


def test_names_with_scripts_are_names(browser: Browser, serve: Any, tmp_path: Path) -> None:
    document = document_of(state_of(node("n0"), gpu_pod("a", at="n0"), gpu_pod("b", 16)))
    text = (
        json.dumps(document)
        .replace("default/a", "default/EVIL")
        .replace("default/b", "EVIL")
        .replace('"s"', '"EVIL"')
        .replace("n0", "EVIL")
    )
    text = text.replace("EVIL", json.dumps(EVIL)[1:-1])
    url = serve(Scripted((WHOLE, text.encode())))
    file = tmp_path / "evil.html"
    file.write_text(page_with(text.encode()), encoding="utf-8")
    for address in (url, f"file://{file}"):
        browser.open(f"{address}#node=%3Cscript%3Ewindow.hit%3D1%3C/script%3E")
        browser.until("document.querySelector('#source').innerText.includes('onerror')")
        browser.click_on("#queue .rows button")
        for part in ("quotas", "decisions"):
            browser.click_on(f"nav [data-for={part}]")
        browser.frames()
        assert browser.js("window.hit === undefined")
        assert browser.js("document.querySelectorAll('img, body script:not([id])').length") == 1
        quiet(browser, address)


@pytest.mark.parametrize(("said", "line"), [
    ((WHOLE, json.dumps({"version": 2}).encode()), "This page reads version 1 of the document, got version 2"),
    (SourceError(403, "scheduler at x:1: needs a bearer token"), "needs a bearer token"),
    (SourceError(502, "scheduler at x:1 cannot be reached: refused"), "cannot be reached: refused"),
    (NotReadyError("the cluster is still being read: pods"), "still being read: pods"),
    ((WHOLE, b"{nonsense"), "JSON"),
])  # fmt: skip
def test_what_cannot_be_shown_is_one_line(browser: Browser, serve: Any, said: Any, line: str) -> None:
    browser.open(serve(Scripted(said)))
    browser.until("!document.querySelector('#fault').hidden")
    text = browser.text("#fault")
    assert line in text
    assert "etrying in" in text
    assert "\n" not in text.strip()


def test_a_lost_connection_is_said_and_mends_itself(browser: Browser, serve: Any) -> None:
    document = document_of(state_of(node("n0")))
    source = Scripted((WHOLE, json.dumps(document).encode()), SourceError(502, "it went away"))
    url = serve(source)
    browser.open(url)
    browser.until("document.querySelector('#fault').innerText.includes('it went away')")
    assert "may be out of date" in browser.text("#fault")
    assert "1 node, 8 accelerators" in browser.text("#source"), "nothing is lost"
    change = {"taken": 1.0, "nodes": {"n0": [8, "c", [], None, "gpu"]}}
    source.said = [(WHOLE, json.dumps(document).encode()), (CHANGE, json.dumps(change).encode())]
    browser.until("document.querySelector('#fault').hidden")
    browser.until("[...document.querySelectorAll('#legend span')].some((one) => one.innerText === 'cordoned 8')")


# -- quotas, a promised start -----------------------------------------------------------------------------------------


def quota(name: str, least: int, most: int) -> ElasticQuota:
    spec = ElasticQuotaSpec(min={GPU: str(least)}, max={GPU: str(most)})
    return ElasticQuota(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)


def test_quotas_are_bars_that_say_who_borrows_from_whom(browser: Browser, serve: Any) -> None:
    of = {name: {keys.QUOTA_NAME: name} for name in ("lender", "borrower")}
    state = state_of(
        *(node(f"n{i}") for i in range(2)),
        quota("lender", 8, 16),
        quota("borrower", 8, 16),
        gpu_pod("one", 8, at="n0", labels=of["borrower"]),
        gpu_pod("two", 4, at="n1", labels=of["borrower"]),
        gpu_pod("three", 2, labels=of["borrower"]),
    )
    url = serve(feed_of(state))
    browser.open(url)
    browser.until(LIVE)
    browser.click_on("nav [data-for=quotas]")
    text = browser.text("#quotas [data-quota=borrower]")
    assert "min 8 · runtime 14 · used 12 · request 14 · max 16" in text
    assert "borrowing 4 above min, from lender (8 unused)" in text
    assert "lending up to 8 of its min" in browser.text("#quotas [data-quota=lender]")
    width = "parseFloat(document.querySelector('#quotas [data-quota=borrower] .{}').style.{})"
    used, want = (browser.js(width.format(kind, "width")) for kind in ("used", "want"))
    assert (used, want) == (75, 87.5)
    browser.click_on("#quotas [data-quota=borrower] .link")
    assert browser.js("location.hash") == "#quota=borrower"
    assert "2 of 3 on nodes, 12 accelerators" in browser.text("#selected")
    quiet(browser, url)


def test_a_promised_start_and_who_goes_are_told(browser: Browser, serve: Any) -> None:
    document = document_of(state_of(node("n0"), gpu_pod("low", at="n0"), gpu_pod("high", priority=9)))
    (unit,) = document["queue"]["units"]
    unit |= {"start": 1_800_000_000.0, "room": {"default/high": "n0"}, "message": "waits for room"}
    unit["victims"] = [["default/low", "n0", "priority"]]
    url = serve(Scripted((WHOLE, json.dumps(document).encode())))
    browser.open(f"{url}#pod=default/high")
    browser.until(LIVE)
    assert "default/low on n0 (priority)" in browser.text("#selected .victims")
    assert "about " in browser.text("#selected")
    queue = browser.text("#queue")
    assert "starts about" in queue
    assert "1 pod would be evicted for it" in queue
    assert "waits for room" in queue
    quiet(browser, url)


def test_changes_move_cells_while_somebody_looks(browser: Browser, serve: Any) -> None:
    state = state_of(node("n0"), node("n1"))
    feed = Feed(lambda: (state.snapshot(60.0), Remarks(source="s")), CONFIG)
    url = serve(feed)
    browser.open(url)
    browser.until(LIVE)
    assert legend(browser)["free"] == 16
    state.upsert(gpu_pod("a", 2, at="n1"))
    browser.until("[...document.querySelectorAll('#legend span')].some((one) => one.innerText === 'bound 2')")
    assert legend(browser)["free"] == 14
    state.delete(Pod, "default/a")
    browser.until("[...document.querySelectorAll('#legend span')].some((one) => one.innerText === 'bound 0')")
    quiet(browser, url)


# -- plans, owners, reasons, colours, widths --------------------------------------------------------------------------


def racks_of(sizes: list[int]) -> list[Any]:
    """A topology of racks, and their nodes."""
    layers = [
        HierarchyEntry(topology_layer="rackLayer", label_key=["rack"]),
        HierarchyEntry(topology_layer="nodeLayer", parent_topology_layer="rackLayer"),
    ]
    spec = ClusterNetworkTopologySpec(network_topology_spec=layers)
    topology = ClusterNetworkTopology(metadata=ObjectMeta(name="default"), spec=spec)
    nodes = [
        objects.node(f"gpu-{r}-{i}", {GPU: "8", "cpu": "64", "memory": "512Gi"}, labels={"rack": f"r{r}"})
        for r, size in enumerate(sizes)
        for i in range(size)
    ]
    return [topology, *nodes]


def row(name: str) -> str:
    return f"#running tr[data-name={json.dumps(name)}]"


def ground(browser: Browser, name: str) -> tuple[int, ...]:
    """The colour beside the first cell of a node."""
    found = browser.js(
        f"(() => {{ const c = document.querySelector('#tree'), [x, y] = c.cellBox({json.dumps(name)}, 0);"
        " const ratio = window.devicePixelRatio;"
        " return [...c.getContext('2d').getImageData((x - 2) * ratio, (y + 2) * ratio, 1, 1).data]; })()"
    )
    return tuple(found)


def test_the_next_round_is_drawn_and_lit(browser: Browser, serve: Any) -> None:
    state = state_of(
        *racks_of([2, 2]),
        objects.group("runs", 1),
        gpu_pod("runs-0", at="gpu-0-0", gang="runs"),
        objects.group("next", 2),
    )
    for i in range(2):
        state.upsert(gpu_pod(f"next-{i}", gang="next"))
    url = serve(feed_of(state))
    browser.open(url)
    browser.until(LIVE)
    browser.frames()
    counts = legend(browser)
    assert (counts["planned"], counts["bound"], counts["free"]) == (16, 8, 8)
    assert browser.text("#next") == "1 unit placed"
    assert "next round" in browser.text("#queue .rows")
    there = browser.js("Object.values(doc.planned).map(([node]) => node)")
    assert len(set(there)) == 2
    before = {name: ground(browser, name) for name in browser.js("names")}
    browser.js("document.querySelector('#queue .rows li').dispatchEvent(new MouseEvent('mouseenter'))")
    browser.frames()
    lit = {name for name in before if ground(browser, name) != before[name]}
    assert lit == set(there), "the mouse lights the planned nodes"
    browser.js("document.querySelector('#queue .rows li').dispatchEvent(new MouseEvent('mouseleave'))")
    browser.frames()
    assert {name: ground(browser, name) for name in before} == before
    browser.click_on("#queue .rows button")
    browser.frames()
    assert {name for name in before if ground(browser, name) != before[name]} == set(there)
    text = browser.text("#selected")
    assert "2 pods, 16 accelerators" in text
    assert all(name in browser.text("#selected .ranks") for name in there)
    assert "the next round places 2 of 2 pods" in text
    quiet(browser, url)


def test_running_workloads_have_owners_and_are_sorted_and_found(browser: Browser, serve: Any) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    state = state_of(*racks_of([2, 2]), objects.group("wide", 2))
    for i in range(2):
        state.upsert(gpu_pod(f"wide-{i}", at=f"gpu-0-{i}", gang="wide", labels={keys.QUOTA_USER: "ada"}))
        one = gpu_pod(f"train-{i}", 2, at=f"gpu-1-{i}")
        meta = structs.replace(one.metadata, owner_references=[msgspec.convert(owner, OwnerReference, strict=False)])
        state.upsert(
            structs.replace(one, metadata=meta, status=structs.replace(one.status, start_time="2026-01-01T00:00:00Z"))
        )
    now = 1767225600.0 + 7200
    snapshot = state.snapshot(now)
    told = Remarks(source="a test")
    url = serve(Feed(lambda: (snapshot, told), CONFIG))
    browser.open(url, width=1440, height=900)
    browser.until(LIVE)
    browser.click_on("nav [data-for=running]")
    assert browser.text("#runs") == "Running: 2 workloads"
    listed = "[...document.querySelectorAll('#workloads tr')].map((one) => one.dataset.name)"
    assert browser.js(listed) == ["default/wide", "default/Job/train"]
    wide, train = browser.text(row("default/wide")), browser.text(row("default/Job/train"))
    assert [one for one in ("wide", "ada · default", "16", "r0", "2 nodes") if one not in wide] == []
    assert {"Job/train", "4", "r1", "2 h"} <= set(re.split(r"[\t\n]", train))
    browser.click_on("#columns [data-id='sort devices']")
    assert browser.js(listed) == ["default/Job/train", "default/wide"]
    assert browser.js("document.querySelector('#columns [aria-sort]').getAttribute('aria-sort')") == "ascending"
    browser.js("document.querySelector('#filter').focus()")
    browser.type("ada")
    assert browser.js(listed) == ["default/wide"]
    before = ground(browser, "gpu-0-0"), ground(browser, "gpu-1-0")
    browser.js(f"document.querySelector({json.dumps(row('default/wide'))}).dispatchEvent(new MouseEvent('mouseenter'))")
    browser.frames()
    assert ground(browser, "gpu-0-0") != before[0]
    assert ground(browser, "gpu-1-0") == before[1]
    browser.open(f"{url}#workload=default/Job/train")
    browser.until(LIVE)
    assert "2 of 2 on nodes, 4 accelerators" in browser.text("#selected")
    quiet(browser, url)


@pytest.mark.parametrize("planned", [True, False])
def test_the_workload_of_a_gang_is_found_by_its_address(browser: Browser, serve: Any, planned: bool) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    state = state_of(*racks_of([2, 2]), objects.group("wide", 2), gpu_pod("other", 8, at="gpu-1-0"))
    for i in range(2):
        one = gpu_pod(f"train-{i}", at="" if planned else f"gpu-0-{i}", gang="wide")
        meta = structs.replace(one.metadata, owner_references=[msgspec.convert(owner, OwnerReference, strict=False)])
        state.upsert(structs.replace(one, metadata=meta))
    url = serve(feed_of(state))
    browser.open(f"{url}#workload=default/Job/train", width=390, height=900)
    browser.until(LIVE)
    chosen = browser.text("#selected")
    assert "There is no workload" not in chosen
    assert ("2 pods, 16 accelerators" if planned else "2 of 2 on nodes, 16 accelerators") in chosen
    tab = browser.js("document.querySelector('nav [data-for=running]').textContent")
    assert tab == ("Running 1, 1 planned" if planned else "Running 2")
    browser.click_on("nav [data-for=running]")
    assert "Job/train" in browser.text(row("default/wide"))
    current = "[...document.querySelectorAll('#workloads [aria-current]')].map((one) => one.dataset.name)"
    assert browser.js(current) == ["default/wide"]
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    browser.js("document.querySelector('#search').focus()")
    browser.type("job/train")
    assert "workload default/Job/train" in browser.text("#results")
    quiet(browser, url)


NEVER = "never fits: the largest rack has 2 nodes, 3 are required."
FIRST = "needs 2 nodes with 8 GPUs in one rack, where rack r1 has most: 1 node with 8 GPUs and 3 with 4, which is less."


@pytest.mark.parametrize(("message", "first", "rest", "tag"), [
    (f"{FIRST} 0/4 nodes are available: 4 Insufficient nvidia.com/gpu.", FIRST, "0/4 nodes are available", "waiting"),
    (f"{NEVER} More", NEVER, "More", "never fits"),
    ("waits for members: 1 of 3", "waits for members: 1 of 3", "", "waiting"),
])  # fmt: skip
def test_the_first_sentence_is_whole_and_the_rest_on_demand(
    browser: Browser, serve: Any, message: str, first: str, rest: str, tag: str
) -> None:
    document = document_of(state_of(node("n0"), gpu_pod("a", 16)))
    document["queue"]["units"][0]["message"] = message
    url = serve(
        Scripted(
            (WHOLE, json.dumps(document).encode()),
            (CHANGE, json.dumps({"taken": 1.0, "queue": document["queue"]}).encode()),
        )
    )
    for width in (390, 1440):
        browser.open(url, width=width, height=900)
        browser.until(LIVE)
        browser.click_on("nav [data-for=queue]")
        assert browser.text("#queue .reason") == first
        whole = (
            "(() => { const one = document.querySelector('#queue .reason');"
            " return [one.scrollWidth <= one.parentElement.clientWidth, getComputedStyle(one).webkitLineClamp]; })()"
        )
        assert browser.js(whole) == [True, "none"]
        assert browser.text("#queue .tag") == tag
        if rest:
            assert not browser.js("document.querySelector('#queue .rest p').checkVisibility()")
            browser.click_on("#queue .rest summary")
            browser.frames()
            browser.js("(drawQueue(), true)")
            assert rest in browser.text("#queue .rest"), "it stays open as the page changes"
        else:
            assert browser.js("document.querySelector('#queue .rest') === null")
    quiet(browser, url)


@pytest.mark.parametrize("gangs", [9, 12, 30, 36, 90])
def test_gangs_beside_each_other_differ_in_colour(browser: Browser, tmp_path: Path, gangs: int) -> None:
    racks, size = 24, 4
    draw = random.Random(gangs)
    document = document_of(state_of(*racks_of([size] * racks)))
    nodes = document["tree"]["nodes"]
    for number in range(gangs):
        start = draw.randrange(len(nodes))
        for rank in range(draw.choice([1, 2, 4, 6])):
            row_ = [nodes[(start + rank) % len(nodes)], f"default/g{number}", rank, 1, None, "r", 0, "u", "q", 0.0, ""]
            document["pods"][f"default/g{number}-{rank}"] = row_
    file = tmp_path / "gangs.html"
    file.write_text(page_with(json.dumps(document).encode()), encoding="utf-8")
    browser.open(f"file://{file}")
    browser.until("document.querySelector('#live').dataset.state === 'still'")
    looks = browser.js("Object.fromEntries([...looks.keys()].map((name) => [name, look(name).join(' ')]))")
    assert len(looks) == gangs
    inside: dict[int, set[str]] = {}
    for pod in document["pods"].values():
        inside.setdefault(nodes.index(pod[0]) // size, set()).add(pod[1])
    for those in inside.values():
        assert len({looks[gang] for gang in those}) == len(those), "one rack"
    for rack, those in inside.items():
        beside = those | inside.get(rack + 1, set())
        assert len({looks[gang] for gang in beside}) == len(beside), "a rack and the next"
    if gangs <= 36:
        assert len(set(looks.values())) == gangs
    if gangs <= 12:
        assert all(one.endswith(" 0") for one in looks.values()), "no patterns while colours last"


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 18])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (768, 1024), (1440, 900), (3840, 2160)])
def test_racks_are_whole_and_the_window_is_used(
    browser: Browser, tmp_path: Path, size: int, width: int, height: int
) -> None:
    file = tmp_path / "racks.html"
    file.write_text(page_with(json.dumps(document_of(state_of(*racks_of([size] * 15)))).encode()), encoding="utf-8")
    browser.open(f"file://{file}", width=width, height=height)
    browser.until("document.querySelector('#live').dataset.state === 'still'")
    browser.frames()
    boxes, room, high, cell = browser.js(
        "(() => { const out = []; walk((box) => { out.push([box.level, box.x, box.w, box.per || 0, box.y + box.h]); });"
        " return [out, scroller.clientWidth, scroller.clientHeight, size.cell]; })()"
    )
    racks = [box for box in boxes if box[0] == 1]
    assert len(racks) == 15
    for _, x, wide, per, _ in racks:
        assert x >= 0
        assert x + wide <= room
        lines = -(-size // per)
        assert size - per * (lines - 1) > per - lines, "lines of equal length, but for one node each"
    if width >= 1440 and size <= 7:
        assert {one[3] for one in racks} == {size}, "a rack is one line"
    assert max(x + wide for _, x, wide, _, _ in racks) > 0.9 * room, "to the right edge"
    assert cell >= (8 if size <= 7 or width > 390 else 5)
    assert max(one[4] for one in boxes) > 0.45 * high or cell == browser.js("ZOOMS.at(-1)"), "no half-empty window"


def test_the_latest_decisions_stay_with_their_reasons(browser: Browser, serve: Any) -> None:
    document = document_of(state_of(node("n0"), objects.group("g", 1), gpu_pod("g-0", at="n0", gang="g")))
    made = {
        "round": 1,
        "at": 100.0,
        "unit": "gang:default/g",
        "what": "bound",
        "line": "gang:default/g: places 1 of 1 pod on n0 (proof: optimal)",
        "why": "",
        "placed": 1,
        "pods": 1,
        "layer": None,
        "nodes": ["n0"],
        "for": "",
        "victims": [],
    }
    refused = {
        **made,
        "round": 2,
        "unit": "default/x",
        "what": "refused",
        "why": "no room",
        "placed": 0,
        "nodes": [],
        "line": "default/x: no room. Because of y",
    }
    document |= {"taken": 200.0, "decisions": [made, refused]}
    change = {"taken": 200.0 + 7200}
    url = serve(Scripted((WHOLE, json.dumps(document).encode()), (CHANGE, json.dumps(change).encode())))
    browser.open(url, width=1440, height=900)
    browser.until(LIVE)
    browser.until("doc.taken > 7000")
    recent = browser.text("#recent")
    assert "places 1 of 1 pod on n0 (proof: optimal)" in recent
    assert recent.index("no room.") < recent.index("1 of 1 pod")
    browser.js("choose(['gang', 'default/g'])")
    assert "places 1 of 1 pod on n0 (proof: optimal)" in browser.text("#selected .decided")
    quiet(browser, url)


def test_a_document_of_an_older_release_is_drawn(browser: Browser, tmp_path: Path) -> None:
    """Fields may come without a new version, so they may be missing, too."""
    document = document_of(state_of(*racks_of([2, 2]), gpu_pod("a", at="gpu-0-0"), gpu_pod("b", 16)))
    for field in ("planned", "plans"):
        del document[field]
    del document["slots"]["largest"]
    document["pods"] = {key: row[:9] for key, row in document["pods"].items()}
    file = tmp_path / "older.html"
    file.write_text(page_with(json.dumps(document).encode()), encoding="utf-8")
    browser.open(f"file://{file}")
    browser.until("document.querySelector('#live').dataset.state === 'still'")
    browser.frames()
    assert (legend(browser)["bound"], legend(browser)["planned"]) == (8, 0)
    browser.click_on("nav [data-for=running]")
    assert browser.text("#runs") == "Running: 1 workload"
    browser.click_on(row("default/a"))
    assert "1 of 1 on nodes, 8 accelerators" in browser.text("#selected")
    quiet(browser, f"file://{file}")


def test_changes_draw_what_a_whole_document_draws(browser: Browser, serve: Any) -> None:
    draw = random.Random(8)
    state, now, changes = state_of(*racks_of([2, 2, 1])), 60.0, []
    scene, teller = LiveDocument(CONFIG), Planned(CONFIG, source="a test")
    names = [one.name for one in state.nodes]
    for step in range(40):
        name, kind = f"p{draw.randrange(9)}", draw.randrange(5)
        if kind <= 2:
            at = draw.choice(["", "", *names])
            state.upsert(
                gpu_pod(name, draw.choice([1, 2, 8]), at=at, priority=draw.choice([0, 9]), gang=draw.choice(["", "g"]))
            )
        elif kind == 3:
            state.delete(Pod, f"default/{name}")
        else:
            one = objects.node(draw.choice(names), {GPU: "8", "cpu": "64", "memory": "512Gi"}, labels={"rack": "r0"})
            spec = structs.replace(one.spec, unschedulable=draw.random() < 0.5)
            state.upsert(structs.replace(one, spec=spec))
        if step == 20:
            state.upsert(objects.group("g", 2))
        snapshot = state.snapshot(now + step)
        change = scene.update(snapshot, teller(snapshot))
        changes.append(json.loads(json.dumps(change if step else scene.whole())))
    url = serve(Scripted((WHOLE, json.dumps(changes.pop(0)).encode())))
    browser.open(url)
    browser.until(LIVE)
    drawn = "JSON.stringify([occ, [...planOn].sort(), [...leaving].sort()])"
    plans = 0
    for number, change in enumerate(changes):
        same = browser.js(
            f"(() => {{ take1('change', {json.dumps(change)}); const one = {drawn};"
            f" takeWhole(structuredClone(doc)); return one === {drawn}; }})()"
        )
        assert same, (number, change)
        plans += browser.js("planOn.size + leaving.size > 0")
    assert plans > 5
    sums = "occ.map((one) => [one.total, Object.values(one.n).reduce((a, b) => a + b, 0)])"
    assert all(cells == told for cells, told in browser.js(sums)), "each cell is of one kind"
    quiet(browser, url)
