"""`koordpy demo`: gangs arrive on a cluster of its own, the live scheduler places them, a person watches."""

import argparse
import sys
from typing import Any

_ACT_SECONDS = 2.6
"""From one example to the next at speed 1, when somebody watches."""
_SETTLE_SECONDS = 20.0
_FRAME_SECONDS = 0.12
_PLAIN_WIDTH = 120
"""Columns where there is no terminal to ask."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--headless", action="store_true", help="plain lines, and exit status 1 when the outcome is not as promised"
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster running until Ctrl-C, for kubectl")
    parser.add_argument(
        "--speed", metavar="FACTOR", type=_speed, default=1.0, help="how fast the examples arrive (default: 1)"
    )


def _speed(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 100:
        raise argparse.ArgumentTypeError("must be from 0.1 to 100")
    return number


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status."""
    import asyncio
    import signal

    from rich.console import Console

    from koordpy.cli.demo_stage import StageError

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    watched = console.is_terminal and not args.headless

    async def play() -> int:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            return await _Demo(console, args, watched=watched).play()
        except asyncio.CancelledError:
            return 130

    try:
        return asyncio.run(play())
    except StageError as error:
        print(f"koordpy demo: {error}", file=sys.stderr)
        return 1


class _Demo:
    def __init__(self, console: Any, args: argparse.Namespace, *, watched: bool) -> None:
        self.console, self.watched, self.keep = console, watched, args.keep
        self.asserting = args.headless
        self.act_seconds = _ACT_SECONDS / args.speed if watched else 0.0
        self.speed = args.speed

    async def play(self) -> int:
        import asyncio
        import contextlib
        import time

        from koordpy.cli.demo_acts import Forecaster, read_acts, read_cluster
        from koordpy.cli.demo_scene import scene_of
        from koordpy.cli.demo_stage import Stage
        from koordpy.cli.demo_view import Picture, Style

        self.began = time.monotonic()
        self.status = "starting the cluster"
        async with Stage(start_seconds=0.4 / self.speed if self.watched else 0.0) as self.stage:
            self.nodes = read_cluster()
            self.forecaster = Forecaster()
            self.scene = scene_of(self.forecaster.state.tree, [n for n in self.nodes if n["kind"] == "Node"])
            self.picture = Picture(self.scene, Style.of(self.console))
            self.forecasts: list[Any] = []
            drawing = asyncio.create_task(self._draw()) if self.watched else None
            try:
                await self._acts(read_acts())
            finally:
                if drawing is not None:
                    drawing.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await drawing
            status = self._end()
            if self.keep:
                await self._hold()  # until cancelled: Ctrl-C is how it ends, and no failure
        return status

    @property
    def seconds(self) -> float:
        import time

        return time.monotonic() - self.began

    def _say(self, text: str) -> None:
        """A line of progress, where no picture tells it."""
        if not self.watched:
            print(f"[{self.seconds:5.1f} s] {text}", flush=True)

    async def _acts(self, acts: list[Any]) -> None:
        import asyncio

        await self.stage.create(self.nodes)
        self._say(f"API server on {self.stage.server.url}, {len(self.scene.gpus)} nodes of 8 GPUs")
        self.status = "starting the scheduler"
        await self.stage.start_scheduler()
        self._say("the scheduler leads")
        self.status = "scheduler leads"
        for act in acts:
            forecast = await asyncio.to_thread(self.forecaster.forecast, act)
            self.forecasts.append(forecast)
            self.scene.arrive(forecast)
            self._say(f"{self.scene.headline}")
            next_at = self.seconds + self.act_seconds
            pause = min(0.08, 1.0 / len(act.objects)) / self.speed if self.watched else 0.0
            await self.stage.create(act.objects, pause_seconds=pause)
            await self._settle(forecast)
            self._tell(forecast)
            await asyncio.sleep(max(0.0, next_at - self.seconds))
        await self._running()
        await asyncio.sleep(self.act_seconds)  # for the last picture

    async def _settle(self, forecast: Any) -> None:
        """Until the scheduler has done what the planner says, or has taken too long; the verdict is for the end."""
        import asyncio

        from koordpy.cli.demo_acts import key_of
        from koordpy.cli.demo_checks import settled

        until = self.seconds + _SETTLE_SECONDS
        while self.seconds < until and not settled(forecast, {key_of(pod): pod for pod in self.stage.pods()}):
            self.stage.check()
            await asyncio.sleep(0.02)

    async def _running(self) -> None:
        """Until every bound pod runs."""
        import asyncio

        until = self.seconds + _SETTLE_SECONDS
        while self.seconds < until:
            bound = [pod for pod in self.stage.pods() if pod["spec"].get("nodeName")]
            if all(pod["status"].get("phase") == "Running" for pod in bound):
                return
            await asyncio.sleep(0.02)

    def _tell(self, forecast: Any) -> None:
        self.scene.look(self.stage.pods())
        for row in self.scene.rows[-len(forecast.gangs) :]:
            place = f" in {row.place}" if row.place else ""
            self._say(f"    {row.letter} {row.name}: {row.bound}/{row.members} bound{place} ({row.forecast.proof})")
            for text in (row.message, row.why):
                if text:
                    self._say(f"      {text}")

    async def _draw(self) -> None:
        import asyncio

        from rich.live import Live

        with Live(console=self.console, auto_refresh=False, screen=True) as live:
            while True:
                self.scene.look(self.stage.pods())
                width, height = self.console.size
                picture = self.picture.render(seconds=self.seconds, width=width, height=height, status=self.status)
                live.update(picture, refresh=True)
                await asyncio.sleep(_FRAME_SECONDS)

    def _end(self) -> int:
        from koordpy.cli.demo_checks import checks, outcome_of
        from koordpy.cli.demo_view import summary

        pods = self.stage.pods()
        self.scene.look(pods)
        for line in self.picture.lines():
            self.console.print(line, soft_wrap=True)
        self.console.print()
        self.console.print(summary(self.scene.rows, self.picture.style, width=self.console.width))
        nodes = [node for node in self.nodes if node["kind"] == "Node"]
        found = checks(self.forecasts, outcome_of(pods, nodes))
        failed = [check for check in found if not check.holds]
        self.console.print()
        for check in found if self.asserting else failed:
            print(f"{'ok    ' if check.holds else 'FAILED'}  {check.text}")
            for fault in check.faults:
                print(f"            {fault}")
        print(f"{len(found) - len(failed)} of {len(found)} promises kept, {self.seconds:.1f} s", flush=True)
        return 1 if failed and (self.asserting or self.watched) else 0

    async def _hold(self) -> None:
        import asyncio
        import contextlib

        print(
            f"\nThe cluster stays until Ctrl-C. In another terminal:\n"
            f"    export KUBECONFIG={self.stage.kubeconfig}\n"
            f"    kubectl get pods -o wide\n"
            f"    kubectl describe pod does-not-fit-0\n"
            f"    kubectl get podgroups,clusternetworktopologies\n"
            f"    kubectl delete pod -l pod-group.scheduling.sigs.k8s.io=prefer-gather\n"
            f"    tail -f {self.stage.log}",
            flush=True,
        )
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                self.stage.check()
                await asyncio.sleep(0.5)
