"""The verbs of the API: from one request to one answer."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from koordpy.sim import discovery, errors, patches, schema, views
from koordpy.sim.apply import applied
from koordpy.sim.bodies import answer, read_body, read_object
from koordpy.sim.disruption import DisruptionBudgets
from koordpy.sim.errors import SUCCESS_201, StatusError
from koordpy.sim.listing import list_body, page, wants_table
from koordpy.sim.resources import REVIEWS, Object, ServedResource
from koordpy.sim.routes import Query, Route, route, split
from koordpy.sim.store import Store
from koordpy.sim.subresources import bind, evict
from koordpy.sim.tables import table
from koordpy.sim.watching import Stream, watch

_PATCHES = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, "
_PATCHES += "application/apply-patch+yaml"


def _check_kind(resource: ServedResource, obj: Object) -> None:
    version, kind = obj.get("apiVersion"), obj.get("kind")
    if version is not None and version != resource.api_version:
        raise StatusError(
            400,
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})",
        )
    if kind is not None and kind != resource.kind:
        raise StatusError(400, f"the kind in the data ({kind}) does not match the expected kind ({resource.kind})")


def _unreadable(resource: ServedResource) -> str:
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'


def _unknown(resource: ServedResource, obj: Object, query: Query) -> list[str]:
    """Warnings about fields that a custom resource's schema lacks; ApiError 400 with fieldValidation=Strict."""
    how = query.text("fieldValidation") or "Warn"
    if resource.schema is None or how == "Ignore":
        return []
    _, unknown = schema.prune(resource.schema, obj)
    texts = [f'unknown field "{path}"' for path in unknown]
    if texts and how == "Strict":
        shown = ", ".join(texts)
        raise StatusError(400, f"{_unreadable(resource)}: strict decoding error: {shown}")
    return texts


class Handlers:
    """Answers requests from a store."""

    def __init__(self, store: Store, budgets: DisruptionBudgets, *, bookmark_seconds: float) -> None:
        self._store = store
        self._budgets = budgets
        self.bookmark_seconds = bookmark_seconds

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer of a request. Raises ApiError."""
        path, query = split(request.raw_path)
        found = route(self._store.registry, path)
        if found is None:
            return self._other_path(path.rstrip("/") or "/")
        method, resource = request.method, found.resource
        if method == "POST" and (resource is None or found.name):
            return await self._post_part(request, found, query)
        if resource is None:
            raise errors.no_such_path()
        if found.part and not (found.part == "status" and resource.has_status):
            raise errors.no_such_path(found.part)
        if not found.name:
            if method == "GET":
                return await self._collection(request, found, resource, query)
            if method == "POST":
                return await self._create(request, found, resource, query)
            if method == "DELETE":
                return await self._delete_all(request, found, resource, query)
        elif method == "GET":
            return self._get(request, found, resource, query)
        elif method == "PUT":
            return await self._put(request, found, resource, query)
        elif method == "PATCH":
            return await self._patch(request, found, resource, query)
        elif method == "DELETE" and not found.part:
            return await self._delete(request, found, resource, query)
        raise StatusError(405, "the server does not allow this method on the requested resource")

    def _other_path(self, path: str) -> web.Response:
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
                document = discovery.api_versions()
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
            raise errors.no_such_path()
        return answer(document)

    async def _collection(
        self, request: web.BaseRequest, found: Route, resource: ServedResource, query: Query
    ) -> web.StreamResponse:
        accept = request.headers.get("Accept", "")
        if query.flag("watch"):
            return await watch(request, self._stream(found, resource, query, accept))
        return answer(list_body(self._store, resource, found.namespace, query, accept=accept))

    def _stream(self, found: Route, resource: ServedResource, query: Query, accept: str) -> Stream:
        seconds = self.bookmark_seconds
        return Stream(self._store, resource, found.namespace, query, accept=accept, bookmark_seconds=seconds)

    def stream(self, raw_path: str) -> Stream:
        """A watch by the target of its request, for callers inside this process. ApiError where there is none."""
        path, query = split(raw_path)
        found = route(self._store.registry, path)
        if found is None or found.resource is None:
            raise errors.no_such_path()
        return self._stream(found, found.resource, query, "application/json")

    def _get(self, request: web.BaseRequest, found: Route, resource: ServedResource, query: Query) -> web.Response:
        entry = self._store.entry(resource, found.name, found.namespace)
        if wants_table(request.headers.get("Accept", "")):
            obj = views.served(resource, entry.obj)
            meta = {"resourceVersion": str(entry.version)}
            include = query.text("includeObject") or "Metadata"
            return answer(table(resource, [obj], meta, now=self._store.seconds(), include=include))
        return answer(views.encoded(resource, entry))

    async def _create(
        self, request: web.BaseRequest, found: Route, resource: ServedResource, query: Query
    ) -> web.Response:
        if resource.namespaced and not found.namespace:
            raise StatusError(405, "the server does not allow this method on the requested resource")
        obj = await read_object(request)
        _check_kind(resource, obj)
        given = (obj.get("metadata") or {}).get("namespace")
        if given and found.namespace and given != found.namespace:
            text = f"the namespace of the provided object does not match the namespace sent on the request ({given}, "
            raise StatusError(400, f"{text}{found.namespace})")
        warnings = _unknown(resource, obj, query)
        entry = self._store.create_entry(resource, obj, namespace=found.namespace, dry_run=query.dry_run)
        return answer(views.encoded(resource, entry), 201, warnings=warnings)

    def _update(
        self, found: Route, resource: ServedResource, query: Query, change: Callable[[Object], Object]
    ) -> web.Response:
        """Change an object through the form in which the resource shows it."""
        warnings: list[str] = []

        def changed(old: Object) -> Object:
            new = change(views.served(resource, old))
            warnings.extend(_unknown(resource, new, query))
            return views.stored(resource, new)

        entry = self._store.update(
            resource,
            found.name,
            changed,
            namespace=found.namespace,
            status=found.part == "status",
            dry_run=query.dry_run,
        )
        return answer(views.encoded(resource, entry), warnings=warnings)

    async def _put(
        self, request: web.BaseRequest, found: Route, resource: ServedResource, query: Query
    ) -> web.Response:
        obj = await read_object(request)
        _check_kind(resource, obj)
        meta = obj.get("metadata")
        if not isinstance(meta, dict) or meta.get("name") != found.name:
            raise StatusError(400, f"the name of the object does not match the name on the URL ({found.name})")
        if resource.custom and not meta.get("resourceVersion"):
            fault = (
                "metadata.resourceVersion",
                "FieldValueInvalid",
                "Invalid value: 0: must be specified for an update",
            )
            raise errors.invalid(resource.kind, resource.group, found.name, [fault])
        uid = self._store.entry(resource, found.name, found.namespace).obj["metadata"]["uid"]
        if meta.get("uid", uid) != uid:
            why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {uid}"
            raise errors.conflict(resource.plural, resource.group, found.name, why)
        return self._update(found, resource, query, lambda old: obj)

    async def _patch(
        self, request: web.BaseRequest, found: Route, resource: ServedResource, query: Query
    ) -> web.Response:
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip()
        patch = await read_body(request)
        if kind == "application/apply-patch+yaml":
            return self._apply(found, resource, query, patch)
        if kind == "application/json-patch+json":
            return self._update(found, resource, query, lambda old: patches.json_patch(old, patch))
        if not isinstance(patch, dict):
            raise StatusError(400, "the body of the request must be an object")
        if kind == "application/merge-patch+json":
            return self._update(found, resource, query, lambda old: patches.merge(old, patch))
        if kind == "application/strategic-merge-patch+json" and not resource.custom:
            return self._update(found, resource, query, lambda old: patches.strategic(old, patch))
        raise StatusError(
            415, f"the body of the request was in an unknown format - accepted media types include: {_PATCHES}"
        )

    def _apply(self, found: Route, resource: ServedResource, query: Query, config: Any) -> web.Response:
        manager = query.text("fieldManager")
        if not manager:
            raise StatusError(400, "fieldManager is required for apply patch")
        if not isinstance(config, dict):
            raise StatusError(400, "the body of the request must be an object")
        _check_kind(resource, config)
        now, force = self._store.now(), query.flag("force")

        def change(current: Object | None) -> Object:
            return applied(resource, current, config, manager=manager, now=now, force=force, subresource=found.part)

        try:
            return self._update(found, resource, query, change)
        except StatusError as error:
            if error.code != 404 or found.part:
                raise
        warnings = _unknown(resource, config, query)
        new = change(None)
        new["metadata"]["name"] = found.name
        entry = self._store.create_entry(resource, new, namespace=found.namespace, dry_run=query.dry_run)
        return answer(views.encoded(resource, entry), 201, warnings=warnings)

    async def _options(self, request: web.BaseRequest, query: Query) -> Object:
        body = await read_body(request)
        options: Object = dict(body) if isinstance(body, dict) else {}
        grace = query.number("gracePeriodSeconds")
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if policy := query.text("propagationPolicy"):
            options["propagationPolicy"] = policy
        if query.dry_run:
            options["dryRun"] = ["All"]
        return options

    async def _delete(
        self, request: web.BaseRequest, found: Route, resource: ServedResource, query: Query
    ) -> web.Response:
        options = await self._options(request, query)
        last, gone = self._store.delete(resource, found.name, namespace=found.namespace, options=options)
        if not gone or resource.name == "pods":
            return answer(views.served(resource, last))
        details = {"name": found.name, "kind": resource.plural, "uid": last["metadata"]["uid"]}
        if resource.group:
            details["group"] = resource.group
        return answer({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})

    async def _delete_all(
        self, request: web.BaseRequest, found: Route, resource: ServedResource, query: Query
    ) -> web.Response:
        options = await self._options(request, query)
        entries, meta = page(self._store, resource, found.namespace, query)
        for entry in entries:
            key = entry.obj["metadata"]
            self._store.delete(resource, key["name"], namespace=key.get("namespace", ""), options=options)
        items = [views.served(resource, entry.obj) for entry in entries]
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return answer({**head, "metadata": meta, "items": items})

    async def _post_part(self, request: web.BaseRequest, found: Route, query: Query) -> web.Response:
        """POST to a subresource, or of an object that is not stored."""
        if found.group == "" and (found.plural, found.part) == ("pods", "binding"):
            bind(self._store, found.namespace, found.name, await read_object(request))
            return answer(SUCCESS_201, 201)
        if found.group == "" and found.plural == "bindings" and not found.name:
            binding = await read_object(request)
            bind(self._store, found.namespace, str((binding.get("metadata") or {}).get("name")), binding)
            return answer(SUCCESS_201, 201)
        if found.group == "" and (found.plural, found.part) == ("pods", "eviction"):
            eviction = await read_object(request)
            if query.dry_run:
                eviction = {**eviction, "deleteOptions": {**(eviction.get("deleteOptions") or {}), "dryRun": ["All"]}}
            evict(self._store, self._budgets, found.namespace, found.name, eviction)
            return answer(SUCCESS_201, 201)
        for kind, plural, _ in REVIEWS.get((found.group, found.version), ()):
            if plural == found.plural:
                return answer(_reviewed(kind, found, await read_object(request)), 201)
        raise errors.no_such_path(found.part)


def _reviewed(kind: str, found: Route, review: Object) -> Object:
    """A review answered: everybody may do everything, under one name."""
    user = {"username": "admin", "groups": ["system:masters", "system:authenticated"]}
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    rules = {"resourceRules": [everything], "nonResourceRules": [], "incomplete": False}
    answers: dict[str, Object] = {
        "SelfSubjectRulesReview": rules,
        "TokenReview": {"authenticated": True, "user": user},
        "SelfSubjectReview": {"userInfo": user},
    }
    status = answers.get(kind, {"allowed": True})
    return {**review, "kind": kind, "apiVersion": f"{found.group}/{found.version}", "status": status}
