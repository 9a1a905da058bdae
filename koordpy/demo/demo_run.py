"""How the demo goes: the cluster, the acts one after the other, the picture beside them, the verdict at the end."""

import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.live import Live

from koordpy.api import keys
from koordpy.demo.acts import Act, Forecast, Forecaster, read_acts, read_cluster
from koordpy.demo.demo_checks import checks, idle, settled
from koordpy.demo.demo_cluster import Stage
from koordpy.demo.demo_objects import Manifest, key_of
from koordpy.demo.demo_scene import DemoScene, scene_of
from koordpy.demo.demo_view import Picture, Style, summary
from koordpy.demo.programme import Programme

INTERRUPTED = 130
ACT_SECONDS = 2.6
"""From one example to the next at speed 1, when somebody watches."""
START_SECONDS = 0.4
"""Until a bound pod runs, at speed 1, when somebody watches."""
SETTLE_SECONDS = 20.0
"""What the scheduler gets for one example; then the demo goes on, and the verdict says what is missing."""
GOALS = (
    f"Where a gang is gathered its PodGroup says: annotation {keys.GANG_TOPOLOGY},\n"
    "as in examples/prefer-gather.yaml; for gangs that say nothing the configuration does, gangs.defaults.gather."
)
_FRAME_SECONDS = 0.12
_PLAIN_WIDTH = 120
"""Columns where there is no terminal to ask."""


async def play(programme: Programme, *, headless: bool, keep: bool, speed: float) -> int:
    """Plays a programme; the exit status. SIGINT and SIGTERM end it in order. Raises StageError."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    console = Console(highlight=False)
    terminal = console.is_terminal and sys.stdout.isatty()  # FORCE_COLOR makes colours, and no terminal of a pipe
    if not terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    watched = terminal and not headless
    cluster = read_cluster(programme.cluster)
    nodes = [one for one in cluster if one["kind"] == "Node"]
    forecaster = Forecaster(cluster=programme.cluster)
    try:
        async with Stage(start_seconds=START_SECONDS / speed if watched else 0.0) as stage:
            scene = scene_of(forecaster.state.nodes.tree, nodes, programme.devices)
            teller = Teller(console, scene, stage, watched=watched)
            async with teller:
                teller.status = "starting the scheduler"
                await stage.create(cluster)
                await stage.start_scheduler()
                teller.status = f"the scheduler leads; its page: {stage.page}"
                teller.say(f"API server on {stage.server.url}, {len(scene.gpus)} nodes; the scheduler leads")
                teller.say(f"the page: {stage.page}")
                forecasts = await _acts(read_acts(programme.acts), forecaster, stage, teller, speed=speed)
            found = checks(forecasts, stage.pods(), scene.gpus)
            teller.conclude(found, every=headless)
            status = int(any(found.values())) if headless or watched else 0
            if keep:
                await _hold(stage, forecasts)
            return status
    except asyncio.CancelledError:
        print("\ninterrupted: the cluster is gone", flush=True)
        return INTERRUPTED


class Teller:
    """Tells what happens: by a live picture where somebody watches a terminal, else by lines of text."""

    def __init__(self, console: Console, scene: DemoScene, stage: Stage, *, watched: bool) -> None:
        self.console, self.scene, self.stage, self.watched = console, scene, stage, watched
        self.status = "starting the cluster"
        self._picture = Picture(scene, Style.of(console))
        self._began = time.monotonic()
        self._drawing: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    async def __aenter__(self) -> "Teller":
        if self.watched:
            self._drawing = asyncio.create_task(self._draw())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._drawing

    async def _draw(self) -> None:
        with Live(console=self.console, auto_refresh=False, screen=True) as live:
            while True:
                self.scene.look(self.stage.pods())
                width, height = self.console.size
                picture = self._picture.render(seconds=self.seconds, width=width, height=height, status=self.status)
                live.update(picture, refresh=True)
                await asyncio.sleep(_FRAME_SECONDS)

    def say(self, text: str) -> None:
        """A line of progress, where no picture tells it."""
        if not self.watched:
            print(f"[{self.seconds:5.1f} s] {text}", flush=True)

    def arrived(self, forecast: Forecast) -> None:
        """What has become of an act."""
        self.scene.look(self.stage.pods())
        for row in self.scene.rows[-len(forecast.gangs) :]:
            place = f" in {row.place}" if row.place else ""
            self.say(f"    {row.letter} {row.name}: {row.bound}/{row.members} bound{place} ({row.forecast.proof})")
            for text in (row.message, row.why):
                if text:
                    self.say(f"      {text}")

    def conclude(self, verdict: Mapping[str, Sequence[str]], *, every: bool) -> None:
        """The whole tree, each gang with its reason, the promises (text -> faults): `every` one, or the broken ones."""
        self.scene.look(self.stage.pods())
        for line in self._picture.lines(self.console.width):
            self.console.print(line, soft_wrap=True)
        self.console.print()
        self.console.print(summary(self.scene.rows, self._picture.style, width=self.console.width))
        self.console.print()
        self.console.print(GOALS, style="dim", soft_wrap=True)
        self.console.print()
        for text, faults in verdict.items():
            if every or faults:
                print(f"{'FAILED' if faults else 'ok    '}  {text}")
                for fault in faults:
                    print(f"            {fault}")
        kept = sum(not faults for faults in verdict.values())
        print(f"{kept} of {len(verdict)} promises kept, {self.seconds:.1f} s", flush=True)


async def _acts(
    acts: Sequence[Act], forecaster: Forecaster, stage: Stage, teller: Teller, *, speed: float
) -> list[Forecast]:
    """The acts in their order; the forecast of each is made before it arrives."""
    forecasts = []
    act_seconds = ACT_SECONDS / speed if teller.watched else 0.0
    for act in acts:
        forecast = await asyncio.to_thread(forecaster.forecast, act)
        forecasts.append(forecast)
        teller.scene.arrive(forecast)
        teller.say(teller.scene.headline)
        next_at = teller.seconds + act_seconds
        pause = min(0.08, 1.0 / len(act.objects)) / speed if teller.watched else 0.0
        await stage.create(act.objects, pause_seconds=pause)
        await settle(stage, forecast)
        teller.arrived(forecast)
        await asyncio.sleep(max(0.0, next_at - teller.seconds))
    await all_run(stage)
    await asyncio.sleep(act_seconds)  # for the last picture
    return forecasts


async def settle(stage: Stage, forecast: Forecast) -> None:
    """Until the scheduler has done what the planner says, or has taken too long; the verdict is for the end."""
    await _until(stage, lambda pods: settled(forecast, {key_of(pod): pod for pod in pods}))


async def all_run(stage: Stage) -> None:
    """Until every bound pod runs, or that takes too long."""
    await _until(stage, lambda pods: not any(idle(pods)))


async def _until(stage: Stage, holds: Callable[[Sequence[Manifest]], bool]) -> None:
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until and not holds(stage.pods()):
        stage.check()
        await asyncio.sleep(0.02)


async def _hold(stage: Stage, forecasts: Sequence[Forecast]) -> None:
    """Until cancelled: Ctrl-C is how it ends, and no failure."""
    waiting = next((key for forecast in forecasts for key in forecast.pending), "")
    gang = next((gang.name for forecast in forecasts for gang in forecast.gangs if gang.is_gang and gang.nodes), "")
    print(
        f"\nThe cluster stays until Ctrl-C; its page is {stage.page}. In another terminal:\n"
        f"    export KUBECONFIG={shlex.quote(str(stage.kubeconfig))}\n"
        f"    kubectl get pods -o wide\n"
        f"    kubectl describe pod {waiting.rpartition('/')[2]}\n"
        f"    kubectl get podgroups,clusternetworktopologies\n"
        f"    kubectl delete pod -l pod-group.scheduling.sigs.k8s.io={gang.rpartition('/')[2]}\n"
        f"    tail -f {shlex.quote(str(stage.log))}\n"
        f"kubectl apply takes pods, Jobs and JobSets of your own. "
        f"No container runs, and no other controller: no logs, no exec.",
        flush=True,
    )
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            stage.check()
            await asyncio.sleep(0.5)
