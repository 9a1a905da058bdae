# SPDX-License-Identifier: Apache-2.0
"""Records the demo: `python -m tests.docs.recording docs/demo.svg` (`make picture`).

The real demo on a cluster of its own, one frame for each example once the scheduler has settled it. Frames follow one
another at the pace of the demo; how long the machine took for them is no part of the picture, so the same code gives
the same bytes.
"""

import asyncio
import sys
from functools import partial
from pathlib import Path

from koordpy.apiserver.served_resources import Object
from koordpy.demo.acts import Forecaster, read_acts, read_cluster
from koordpy.demo.demo_cluster import Stage
from koordpy.demo.demo_run import ACT_SECONDS, all_run, settle
from koordpy.demo.demo_scene import scene_of
from koordpy.demo.demo_view import Picture, Style
from tests.docs.film import Frame, film, frame_of

WIDTH, HEIGHT = 120, 45
"""Columns and lines of the terminal."""
LAST_SECONDS = 8.0
_QUIET_LOOKS, _LOOK_SECONDS = 40, 0.1


async def record() -> list[Frame]:
    """Frames of the demo. Raises StageError where the cluster does not come up."""
    cluster = read_cluster()
    forecaster = Forecaster()
    frames: list[Frame] = []
    async with Stage(start_seconds=0.0) as stage:
        scene = scene_of(forecaster.state.nodes.tree, [one for one in cluster if one["kind"] == "Node"])
        picture = Picture(scene, Style(colour=True, unicode=True))
        await stage.create(cluster)
        await stage.start_scheduler()
        for act in read_acts():
            forecast = await asyncio.to_thread(forecaster.forecast, act)
            scene.arrive(forecast)
            await stage.create(act.objects)
            await settle(stage, forecast)
            await all_run(stage)
            await _told(stage, frame=len(frames))
            scene.look(stage.pods())
            seconds = ACT_SECONDS * (len(frames) + 1)
            shown = picture.render(seconds=seconds, width=WIDTH, height=HEIGHT, status="scheduler started")
            frames.append(frame_of(shown, width=WIDTH))
    return frames


async def _told(stage: Stage, *, frame: int) -> None:
    """Until the waiting pods are told how the cluster stands now: a label of a node makes the scheduler look again."""
    store = stage.server.store
    store.update("nodes", store.list("nodes")[0]["metadata"]["name"], partial(_marked, frame=frame))
    told, still = None, 0
    while still < _QUIET_LOOKS:
        now = sorted(str(pod["status"].get("conditions")) for pod in stage.pods() if not pod["spec"].get("nodeName"))
        told, still = now, still + 1 if now == told else 0
        await asyncio.sleep(_LOOK_SECONDS)


def _marked(node: Object, *, frame: int) -> Object:
    meta = node["metadata"]
    return {**node, "metadata": {**meta, "labels": {**meta.get("labels", {}), "frame": str(frame)}}}


def main(path: str) -> int:
    """Writes the recording."""
    frames = asyncio.run(record())
    title = "koordpy demo: gangs arrive on 64 nodes, and where each goes, and why"
    Path(path).write_text(film(frames, title=title, width=WIDTH, seconds=ACT_SECONDS, last_seconds=LAST_SECONDS))
    print(f"{path}: {len(frames)} frames, {Path(path).stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
