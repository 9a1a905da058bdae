# SPDX-License-Identifier: Apache-2.0
"""A Prometheus of its own for a test: it scrapes one address on loopback and answers queries as Grafana asks them."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.charts.dashboards import FOLDER
from tests.e2e.process import Process, eventually
from tests.e2e.test_gpu_delivery import free_port
from tests.loudly import skip_loudly

RULES = FOLDER.parent / "alerts.yaml"
LEASE, NAMESPACE, JOB = "kube-system/koordpy", "koordpy-system", "koordpy"
SCRAPE_SECONDS = 0.2


def needed(request: pytest.FixtureRequest, program: str) -> str:
    """Where a program of Prometheus is; without it the test that asks is skipped loudly."""
    found = shutil.which(program)
    if found is None:
        skip_loudly(request, "dashboards and alerts on Prometheus", f"no {program} on the PATH (Debian: prometheus)")
    return found


def promtool(request: pytest.FixtureRequest, *words: str, given: str | None = None) -> str:
    """Runs promtool; what it says. Fails the test where promtool is not content."""
    command = [needed(request, "promtool"), *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def write_rules(folder: Path) -> Path:
    """The chart's alerts as a release has them."""
    rules = folder / "alerts.yaml"
    text = RULES.read_text(encoding="utf-8").replace("LEASE", LEASE).replace("RUNBOOKS", "https://example.com/alerts")
    rules.write_text(text, encoding="utf-8")
    return rules


class Prometheus:
    """One that runs."""

    def __init__(self, url: str, process: Process, http: aiohttp.ClientSession) -> None:
        self._url, self._process, self._http = url, process, http

    async def ask(self, query: str) -> dict[str, float]:
        """Labels -> value, of a query now; without those that are no number (a quantile of nothing)."""
        async with self._http.get(f"{self._url}/api/v1/query", params={"query": query}) as answer:
            body: dict[str, Any] = await answer.json()
        assert body["status"] == "success", (query, body)
        result = body["data"]["result"]
        found = {json.dumps(one["metric"], sort_keys=True): float(one["value"][1]) for one in result}
        return {labels: value for labels, value in found.items() if not math.isnan(value)}

    async def has_scraped_since(self, moment: float) -> None:
        """Waits for a scrape that began after a time (seconds since the epoch)."""

        async def late() -> bool:
            return any(at > moment for at in (await self.ask("timestamp(koordpy_build_info)")).values())

        await eventually(late, what="scraped", processes=[self._process])


@asynccontextmanager
async def prometheus(program: str, target: str, folder: Path) -> AsyncIterator[Prometheus]:
    """Runs until left; its answers are of `target` (HOST:PORT) alone."""
    labels = {"namespace": NAMESPACE}
    job = {"job_name": JOB, "static_configs": [{"targets": [target], "labels": labels}]}
    interval = f"{int(SCRAPE_SECONDS * 1000)}ms"
    config = {"global": {"scrape_interval": interval, "evaluation_interval": interval}, "scrape_configs": [job]}
    config["rule_files"] = [str(write_rules(folder))]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [program, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    process = Process("prometheus", [*command, f"--web.listen-address={address}"], log=folder / "prometheus.log")
    async with aiohttp.ClientSession() as http:
        with process:

            async def ready() -> bool:
                try:
                    async with http.get(f"http://{address}/-/ready") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(ready, what="Prometheus is ready", processes=[process])
            yield Prometheus(f"http://{address}", process, http)
