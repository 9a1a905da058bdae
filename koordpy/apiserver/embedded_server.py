# SPDX-License-Identifier: Apache-2.0
"""The embedded API server: the part of the Kubernetes API that a scheduler, a kubelet and kubectl use.

`koordpy demo`, tests, and benchmarks that need no real control plane use it. It serves JSON on 127.0.0.1 and accepts
every bearer token. Of all controllers it has only two: for the status of PodDisruptionBudgets and of
CustomResourceDefinitions. `workload_controllers.py` optionally adds controllers of Jobs and JobSets. Deletion of an
owner does not cascade. CEL rules are not evaluated.
"""

import asyncio
import logging
from typing import Self

from aiohttp import web

from koordpy.api import keys
from koordpy.apiserver.api_calls import refusal
from koordpy.apiserver.budget_controller import DisruptionBudgets
from koordpy.apiserver.crd_definitions import DEFINITIONS, Definitions, shipped_definitions
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.request_handlers import Handlers
from koordpy.apiserver.status_errors import StatusError

_LOG = logging.getLogger(__name__)
_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")

_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters:
- name: koordpy
  cluster:
    server: {url}
contexts:
- name: koordpy
  context:
    cluster: koordpy
    user: koordpy
    namespace: default
current-context: koordpy
users:
- name: koordpy
  user:
    token: koordpy
"""


class ApiServer:
    """The embedded API server, used as `async with ApiServer() as server: ...server.url...`.

    The event loop's thread may read and write `store` directly, even before the start.
    """

    def __init__(self, *, bookmark_seconds: float = 10.0, store: Store | None = None) -> None:
        """bookmark_seconds: seconds between the bookmarks of a watch. store: an empty store; None to create one."""
        self._runner: web.ServerRunner | None = None
        self.url = ""  # empty until `start`
        self.store = store or Store()
        self._budgets = DisruptionBudgets(self.store)
        self._definitions = Definitions(self.store)
        self._handlers = Handlers(self.store, self._budgets, bookmark_seconds=bookmark_seconds)
        for name in _NAMESPACES:
            self.store.create("namespaces", {"metadata": {"name": name}})
        for name, value in keys.SYSTEM_PRIORITIES.items():
            self.store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})
        for definition in shipped_definitions():
            self.store.create(DEFINITIONS, definition)

    async def start(self) -> None:
        """Listens on a free port of 127.0.0.1, and sets `url`."""
        server = web.Server(self.answer, handler_cancellation=True)
        self._runner = web.ServerRunner(server, access_log=None, shutdown_timeout=0.2, keepalive_timeout=600.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Ends all watches and stops listening. Objects remain stored, and another `start` serves them again."""
        self.store.end_watches()
        self._budgets.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def kubeconfig(self) -> str:
        """Returns a kubeconfig (YAML) for this server."""
        return _KUBECONFIG.format(url=self.url)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Returns the answer to a request. Errors become Status objects; an unexpected error is logged and has code
        500."""
        try:
            return await self._handlers.handle(request)
        except StatusError as error:
            return refusal(error)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            _LOG.exception("%s %s failed", request.method, request.path)
            asked = f"{request.method} {request.path}"
            return refusal(StatusError(500, f"{asked}: internal error of the embedded API server"))
