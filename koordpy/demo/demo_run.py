# SPDX-License-Identifier: Apache-2.0
"""Runs the demo: starts the cluster, creates the acts one by one, draws the picture, and runs the checks."""

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
"""Exit status after SIGINT, as in shells: 128 and the number of the signal."""
ACT_SECONDS = 2.6
"""Seconds between two examples at speed 1, if the picture is shown."""
START_SECONDS = 0.4
"""Seconds from a Binding until the pod runs at speed 1, if the picture is shown."""
SETTLE_SECONDS = 20.0
"""Maximum seconds that the demo waits for an act; the checks at the end report pods that are not placed."""
# text at the end of the output about the goals of placement
GOALS = (
    f"A gang requests network locality with the PodGroup annotation {keys.GANG_TOPOLOGY}\n"
    "(see examples/prefer-gather.yaml). The default for gangs without it is gangs.defaults.gather in the configuration."
)
_FRAME_SECONDS = 0.12
"""Seconds between two pictures."""
_PLAIN_WIDTH = 120
"""Columns of the output if it does not go to a terminal."""


async def play(programme: Programme, *, headless: bool, keep: bool, speed: float) -> int:
    """Runs a programme and returns the exit status. SIGINT and SIGTERM end it in order. Raises StageError.

    headless: True to print lines instead of the picture, and all checks. keep: True to keep the cluster until Ctrl-C.
    speed: factor by which pauses are shortened.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    console = Console(highlight=False)
    terminal = console.is_terminal and sys.stdout.isatty()  # with FORCE_COLOR a pipe would count as a terminal
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
                teller.status = f"scheduler started; web UI: {stage.page}"
                teller.say(f"API server on {stage.server.url}, {len(scene.gpus)} nodes; scheduler started")
                teller.say(f"web UI: {stage.page}")
                forecasts = await _acts(read_acts(programme.acts), forecaster, stage, teller, speed=speed)
            found = checks(forecasts, stage.pods(), scene.gpus)
            teller.conclude(found, every=headless)
            status = int(any(found.values())) if headless or watched else 0
            if keep:
                await _hold(stage, forecasts)
            return status
    except asyncio.CancelledError:
        print("\ninterrupted: the cluster is deleted", flush=True)
        return INTERRUPTED


class Teller:
    """Shows the progress of the demo: as a live picture on a terminal, else as lines of text."""

    def __init__(self, console: Console, scene: DemoScene, stage: Stage, *, watched: bool) -> None:
        """watched: True to show the picture; False to print lines."""
        self.console, self.scene, self.stage, self.watched = console, scene, stage, watched
        self.status = "starting the cluster"
        self._picture = Picture(scene, Style.for_console(console))
        self._began = time.monotonic()
        self._drawing: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
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
        """Draws the picture again and again, until it is cancelled."""
        with Live(console=self.console, auto_refresh=False, screen=True) as live:
            while True:
                self.scene.look(self.stage.pods())
                width, height = self.console.size
                picture = self._picture.render(seconds=self.seconds, width=width, height=height, status=self.status)
                live.update(picture, refresh=True)
                await asyncio.sleep(_FRAME_SECONDS)

    def say(self, text: str) -> None:
        """Prints a line of progress, unless the picture is shown."""
        if not self.watched:
            print(f"[{self.seconds:5.1f} s] {text}", flush=True)

    def arrived(self, forecast: Forecast) -> None:
        """Prints the result of an act: a line for each gang, its message, and its reason."""
        self.scene.look(self.stage.pods())
        for row in self.scene.rows[-len(forecast.gangs) :]:
            place = f" in {row.place}" if row.place else ""
            self.say(f"    {row.letter} {row.name}: {row.bound}/{row.members} bound{place} ({row.forecast.proof})")
            for text in (row.message, row.why):
                if text:
                    self.say(f"      {text}")

    def conclude(self, verdict: Mapping[str, Sequence[str]], *, every: bool) -> None:
        """Prints the whole tree, each gang with its reason, and the checks (text -> faults).

        every: True to print all checks; False to print only failed checks.
        """
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
        passed = sum(not faults for faults in verdict.values())
        print(f"{passed} of {len(verdict)} checks passed, {self.seconds:.1f} s", flush=True)


async def _acts(
    acts: Sequence[Act], forecaster: Forecaster, stage: Stage, teller: Teller, *, speed: float
) -> list[Forecast]:
    """Creates the acts in their order, each after its forecast, and returns the forecasts."""
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
    await asyncio.sleep(act_seconds)  # shows the last picture
    return forecasts


async def settle(stage: Stage, forecast: Forecast) -> None:
    """Waits until the scheduler has reached the forecast, or `SETTLE_SECONDS` have passed."""
    await _until(stage, lambda pods: settled(forecast, {key_of(pod): pod for pod in pods}))


async def all_run(stage: Stage) -> None:
    """Waits until every bound pod runs, or `SETTLE_SECONDS` have passed."""
    await _until(stage, lambda pods: not any(idle(pods)))


async def _until(stage: Stage, holds: Callable[[Sequence[Manifest]], bool]) -> None:
    """Waits until `holds(pods)` is True, or `SETTLE_SECONDS` have passed. Raises StageError if the scheduler ends."""
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until and not holds(stage.pods()):
        stage.check()
        await asyncio.sleep(0.02)


async def _hold(stage: Stage, forecasts: Sequence[Forecast]) -> None:
    """Prints how to use the cluster, and keeps it until Ctrl-C, which is not a failure."""
    waiting = next((key for forecast in forecasts for key in forecast.pending), "")
    gang = next((gang.name for forecast in forecasts for gang in forecast.gangs if gang.is_gang and gang.nodes), "")
    print(
        f"\nThe cluster runs until Ctrl-C. Web UI: {stage.page}. In another terminal:\n"
        f"    export KUBECONFIG={shlex.quote(str(stage.kubeconfig))}\n"
        f"    kubectl get pods -o wide\n"
        f"    kubectl describe pod {waiting.rpartition('/')[2]}\n"
        f"    kubectl get podgroups,clusternetworktopologies\n"
        f"    kubectl delete pod -l pod-group.scheduling.sigs.k8s.io={gang.rpartition('/')[2]}\n"
        f"    tail -f {shlex.quote(str(stage.log))}\n"
        f"You can kubectl-apply your own pods, Jobs and JobSets. "
        f"No containers run and there are no other controllers, so there are no logs and no exec.",
        flush=True,
    )
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            stage.check()
            await asyncio.sleep(0.5)
