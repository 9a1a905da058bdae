"""The page in a browser: what a person sees of the demo, of 5,000 nodes and of an empty cluster, and does by keys."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from bench import objects
from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration
from koordpy.api.custom import (
    Device,
    DeviceEntry,
    DeviceMatrices,
    DeviceMatrix,
    DeviceSpec,
    ElasticQuota,
    ElasticQuotaSpec,
)
from koordpy.api.objects import ObjectMeta, Pod
from koordpy.cluster.state import ClusterState
from koordpy.view.document import LiveDocument, Remarks
from koordpy.view.live import CHANGE, WHOLE, Event, Feed, NotReadyError, Planned
from koordpy.view.serve import SourceError, page_of, page_with
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
            url = line.partition("the page: ")[2].strip() or url
            if "promises kept" in line:
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
    state = ClusterState(gpu=CONFIG.gpu)
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
    assert browser.text("#roomline") == "Free for gangs of 8 GPUs: 13, of 64: 1, of 512: 0"
    assert browser.js("document.querySelector('#slots tbody').rows.length") == 3
    queue = browser.text("#queue")
    assert "2 units waiting" in queue
    assert "default/does-not-fit" in queue
    assert "12 pods of 8 nvidia.com/gpu" in queue
    assert "0/64 nodes are available" in queue
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
    assert "more slots were free in blockLayer" in help_text
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
    assert "holds 395 of" in quotas
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
    for _ in range(4):
        browser.key("ArrowDown")
    assert "node-" in browser.text("#here")
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
        *(node(f"n{i}") for i in (0, 1, 2, 3, 5, 6)),
        structs.replace(cordoned, spec=structs.replace(cordoned.spec, unschedulable=True)),
        gpu_pod("bound", at="n1"),
        structs.replace(other, spec=structs.replace(other.spec, scheduler_name="default-scheduler")),
        structs.replace(held, status=structs.replace(held.status, nominated_node_name="n3")),
        structs.replace(ending, metadata=structs.replace(ending.metadata, deletion_timestamp="2026-01-01T00:00:00Z")),
        Device(metadata=ObjectMeta(name="n6"), spec=DeviceSpec(devices=entries)),
    )
    url = serve(feed_of(state))
    browser.open(url)
    browser.until(LIVE)
    browser.frames()
    assert legend(browser) == {"free": 15, "bound": 8, "held": 8, "other": 8, "ending": 8, "sick": 1, "cordoned": 8}

    def form(name: str, cell: int) -> tuple[bool, ...]:
        """Which pixels of a cell are not its ground, whatever their colour."""
        pixels = browser.shown(name, cell)
        empty = browser.shown("n0", 0)
        ground = empty[len(empty) // 2 + 12]  # the middle of a free one
        return tuple(sum(abs(a - b) for a, b in zip(one, ground, strict=True)) > 60 for one in pixels)

    places = {"free": ("n0", 1), "bound": ("n1", 1), "other": ("n2", 1), "held": ("n3", 1), "ending": ("n5", 1)}
    places |= {"sick": ("n6", 5), "cordoned": ("n4", 1)}
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
    assert "Weakest links" in text
    assert browser.js("document.querySelectorAll('#selected .links .weak').length") == 4
    quiet(browser, url)


def test_an_empty_cluster_says_so(browser: Browser, serve: Any) -> None:
    url = serve(feed_of(ClusterState()))
    browser.open(url)
    browser.until(LIVE)
    assert "Nothing waits." in browser.text("#queue")
    assert "0 nodes, 0 accelerators" in browser.text("#source")
    assert set(legend(browser).values()) == {0}
    browser.js("document.querySelector('#tree').focus()")
    browser.key("ArrowDown")
    browser.click_on("nav [data-for=decisions]")
    assert "Nothing was decided yet." in browser.text("#decisions")
    quiet(browser, url)


def test_five_thousand_nodes_and_a_hundred_thousand_pods_are_drawn(browser: Browser, tmp_path: Path) -> None:
    names = [f"node-{i}" for i in range(5000)]
    starts = list(range(0, 5000, 8))
    document = document_of(ClusterState())
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
    ((WHOLE, json.dumps({"version": 2}).encode()), "This page reads version 1 of the document, and this is version 2"),
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
    assert "rying again in" in text
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
    assert "borrows 4 above its min of what lender (8) leaves unused" in text
    assert "lends up to 8 of its min" in browser.text("#quotas [data-quota=lender]")
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
    assert "1 pod would go for it" in queue
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
