# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests: finds the handler by method and path, and carries the request out on the store.

There are handlers for get, list, watch, create, update, patch and delete. The rules of writes are in `Store`; the rules
of requests and bodies are here.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from koordpy.apiserver import applied_patches, crd_schema, discovery, status_errors
from koordpy.apiserver.api_calls import Call, Query, answer, call_of, path_of, read_body, read_object
from koordpy.apiserver.budget_controller import DisruptionBudgets
from koordpy.apiserver.listing import list_body, listed, page
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import encoded, served, stored
from koordpy.apiserver.served_resources import Object, ServedResource
from koordpy.apiserver.server_apply import applied
from koordpy.apiserver.status_errors import SUCCESS_201, StatusError
from koordpy.apiserver.subresources import bind, evict
from koordpy.apiserver.table_documents import table_of
from koordpy.apiserver.watch_streams import Stream, watch

# media types of patches that are accepted; part of the error for any other media type
_PATCHES = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, "
_PATCHES += "application/apply-patch+yaml"
_Handler = Callable[[web.BaseRequest, Call], Awaitable[web.StreamResponse]]
_NOT_ALLOWED = "the server does not allow this method on the requested resource"


def _check_kind(resource: ServedResource, obj: Object) -> None:
    """Raises StatusError 400 if the object in a body has another API version or kind than the path."""
    version, kind = obj.get("apiVersion"), obj.get("kind")
    if version is not None and version != resource.api_version:
        raise StatusError(
            400,
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})",
        )
    if kind is not None and kind != resource.kind:
        raise StatusError(400, f"the kind in the data ({kind}) does not match the expected kind ({resource.kind})")


def _unknown(call: Call, obj: Object) -> list[str]:
    """Returns warnings about fields that are not in the schema of a custom resource, as fieldValidation requests.

    With `Ignore` there are none; with `Strict` such fields raise StatusError 400; the default is `Warn`.
    """
    resource, how = call.resource, call.query.text("fieldValidation") or "Warn"
    if resource.schema is None or how == "Ignore":
        return []
    texts = [f'unknown field "{path}"' for path in crd_schema.prune(resource.schema, obj)[1]]
    if texts and how == "Strict":
        unreadable = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise StatusError(400, f"{unreadable}: strict decoding error: {', '.join(texts)}")
    return texts


class Handlers:
    """Answers requests from a store."""

    def __init__(self, store: Store, budgets: DisruptionBudgets, *, bookmark_seconds: float) -> None:
        """budgets: checked by evictions. bookmark_seconds: seconds between the bookmarks of a watch."""
        self._store = store
        self._budgets = budgets
        self._bookmark_seconds = bookmark_seconds
        self._verbs: dict[tuple[str, bool], _Handler] = {
            ("GET", False): self._collection,
            ("POST", False): self._create,
            ("DELETE", False): self._delete_all,
            ("GET", True): self._get,
            ("PUT", True): self._put,
            ("PATCH", True): self._patch,
            ("DELETE", True): self._delete,
        }
        """(method, True if the path names an object) -> handler."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Returns the answer to a request. Raises StatusError."""
        call = call_of(self._store.registry, request.raw_path, request.headers.get("Accept", ""))
        if call is None:
            return self._other_path(path_of(request.raw_path).rstrip("/") or "/")
        if call.query.text("dryRun"):
            raise StatusError(400, "dry runs are not supported by this embedded server")
        if request.method == "POST" and call.name:
            return await self._post_part(request, call)
        if call.part and not (call.part == "status" and call.resource.has_status):
            raise status_errors.no_such_path(call.part)
        handler = self._verbs.get((request.method, bool(call.name)))
        if handler is None or (call.part and request.method == "DELETE"):
            raise StatusError(405, _NOT_ALLOWED)
        return await handler(request, call)

    def _other_path(self, path: str) -> web.Response:
        """Answers a path that names no resource: health checks, discovery, OpenAPI. Raises StatusError 404."""
        registry = self._store.registry
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        parts = path.strip("/").split("/")
        document: Object | None = None
        match parts:
            case [""]:
                document = {
                    "paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]
                }
            case ["version"]:
                document = discovery.VERSION
            case ["api"]:
                document = discovery.API_VERSIONS
            case ["apis"]:
                document = discovery.api_groups(registry)
            case ["api", version]:
                document = discovery.api_resources(registry, "", version)
            case ["apis", group]:
                document = discovery.api_group(registry, group)
            case ["apis", group, version]:
                document = discovery.api_resources(registry, group, version)
            case ["openapi", "v3"]:
                document = discovery.openapi_index(registry)
            case ["openapi", "v3", "api", version]:
                document = discovery.openapi_document(registry, "", version)
            case ["openapi", "v3", "apis", group, version]:
                document = discovery.openapi_document(registry, group, version)
        if document is None:
            raise status_errors.no_such_path()
        return answer(document)

    async def _collection(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Answers a list or a watch."""
        if call.query.flag("watch"):
            return await watch(request, Stream(self._store, call, bookmark_seconds=self._bookmark_seconds))
        return answer(list_body(self._store, call))

    async def _get(self, request: web.BaseRequest, call: Call) -> web.Response:
        entry = self._store.entry(call.resource, call.name, call.namespace)
        if call.as_table:
            return answer(table_of(call, [entry], {"resourceVersion": str(entry.version)}, now=self._store.seconds()))
        return answer(encoded(call.resource, entry))

    async def _create(self, request: web.BaseRequest, call: Call) -> web.Response:
        """Answers POST to a collection."""
        if call.resource.namespaced and not call.namespace:
            raise StatusError(405, _NOT_ALLOWED)
        obj = await read_object(request)
        given = (obj.get("metadata") or {}).get("namespace")
        if given and call.namespace and given != call.namespace:
            text = f"the namespace of the provided object does not match the namespace sent on the request ({given}, "
            raise StatusError(400, f"{text}{call.namespace})")
        return self._created(call, obj)

    def _created(self, call: Call, obj: Object) -> web.Response:
        _check_kind(call.resource, obj)
        warnings = _unknown(call, obj)
        made = self._store.create(call.resource, obj, namespace=call.namespace)
        return answer(served(call.resource, made), 201, warnings=warnings)

    def _update(self, call: Call, change: Callable[[Object], Object]) -> web.Response:
        """Changes an object. `change` gets and returns the object in the version of the request.

        The store may have the object in another version, so it is converted before and after.
        """
        warnings: list[str] = []

        def changed(old: Object) -> Object:
            new = change(served(call.resource, old))
            warnings.extend(_unknown(call, new))
            return stored(call.resource, new)

        status = call.part == "status"
        entry = self._store.update(call.resource, call.name, changed, namespace=call.namespace, status=status)
        return answer(encoded(call.resource, entry), warnings=warnings)

    async def _put(self, request: web.BaseRequest, call: Call) -> web.Response:
        """Answers PUT: replaces an object, or its status."""
        resource, obj = call.resource, await read_object(request)
        _check_kind(resource, obj)
        meta = obj.get("metadata")
        if not isinstance(meta, dict) or meta.get("name") != call.name:
            raise StatusError(400, f"the name of the object does not match the name on the URL ({call.name})")
        if resource.custom and not meta.get("resourceVersion"):
            text = "Invalid value: 0: must be specified for an update"
            raise status_errors.invalid(resource, call.name, ("metadata.resourceVersion", "FieldValueInvalid", text))
        stored = self._store.entry(resource, call.name, call.namespace).obj
        status_errors.check_preconditions(resource, stored, {"uid": meta.get("uid")})
        return self._update(call, lambda old: obj)

    async def _patch(self, request: web.BaseRequest, call: Call) -> web.Response:
        """Answers PATCH by the patch type in the header Content-Type."""
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip()
        patch = await read_body(request)
        if kind == "application/apply-patch+yaml":
            return self._apply(call, patch)
        if kind == "application/json-patch+json":
            return self._update(call, lambda old: applied_patches.json_patch(old, patch))
        if not isinstance(patch, dict):
            raise StatusError(400, "the body of the request must be an object")
        if kind == "application/merge-patch+json":
            return self._update(call, lambda old: applied_patches.merge(old, patch))
        if kind == "application/strategic-merge-patch+json" and not call.resource.custom:
            return self._update(call, lambda old: applied_patches.strategic(old, patch))
        raise StatusError(
            415, f"the body of the request was in an unknown format - accepted media types include: {_PATCHES}"
        )

    def _apply(self, call: Call, config: Any) -> web.Response:
        """Answers a server-side apply: updates the object, or creates it if it does not exist."""
        manager, force = call.query.text("fieldManager"), call.query.flag("force")
        if not manager:
            raise StatusError(400, "fieldManager is required for apply patch")
        if not isinstance(config, dict):
            raise StatusError(400, "the body of the request must be an object")
        _check_kind(call.resource, config)
        now = self._store.now()

        def change(current: Object | None) -> Object:
            return applied(call.resource, current, config, manager=manager, now=now, force=force, subresource=call.part)

        try:
            return self._update(call, change)
        except StatusError as error:
            if error.code != 404 or call.part:
                raise
        new = change(None)
        new["metadata"]["name"] = call.name
        return self._created(call, new)

    async def _options(self, request: web.BaseRequest, query: Query) -> Object:
        """Returns the DeleteOptions of the body; query parameters replace its fields."""
        body = await read_body(request)
        options: Object = dict(body) if isinstance(body, dict) else {}
        grace = query.number("gracePeriodSeconds")
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if policy := query.text("propagationPolicy"):
            options["propagationPolicy"] = policy
        return options

    async def _delete(self, request: web.BaseRequest, call: Call) -> web.Response:
        """Answers DELETE of an object: with the object if it still exists or is a pod, else with a Status document."""
        resource, options = call.resource, await self._options(request, call.query)
        last, gone = self._store.delete(resource, call.name, namespace=call.namespace, options=options)
        if not gone or resource.name == "pods":
            return answer(served(resource, last))
        details = {**status_errors.subject(resource, call.name), "uid": last["metadata"]["uid"]}
        return answer({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})

    async def _delete_all(self, request: web.BaseRequest, call: Call) -> web.Response:
        """Answers DELETE of a collection: deletes the objects that the selectors match."""
        options = await self._options(request, call.query)
        entries, meta = page(self._store, call)
        for entry in entries:
            key = entry.obj["metadata"]
            self._store.delete(call.resource, key["name"], namespace=key.get("namespace", ""), options=options)
        return answer(listed(call.resource, entries, meta))

    async def _post_part(self, request: web.BaseRequest, call: Call) -> web.Response:
        """Answers POST to a subresource of a pod: binding or eviction."""
        match call.resource.name, call.part:
            case "pods", "binding":
                bind(self._store, call.namespace, call.name, await read_object(request))
            case "pods", "eviction":
                evict(self._store, self._budgets, call.namespace, call.name, await read_object(request))
            case _:
                raise status_errors.no_such_path(call.part)
        return answer(SUCCESS_201, 201)
