"""Lists: selectors, pages that all show one state, resourceVersion rules, Table form."""

import base64
import time
from bisect import bisect_right

import orjson

from koordpy.sim import views
from koordpy.sim.errors import StatusError
from koordpy.sim.resources import Object, ServedResource
from koordpy.sim.routes import Query
from koordpy.sim.selectors import Match, both, field_match, label_match
from koordpy.sim.shelf import ShelfEntry
from koordpy.sim.store import Store
from koordpy.sim.tables import table


def _token(version: int, key: tuple[str, str]) -> str:
    body = orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": key})
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _read_token(text: str) -> tuple[int, tuple[str, str]]:
    try:
        found = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        namespace, name = found["start"]
        return int(found["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError):
        raise StatusError(400, "continue key is not valid") from None


def matcher(resource: ServedResource, query: Query) -> Match | None:
    """The test of a query's selectors, None for everything. Raises ApiError 400."""
    return both(label_match(query.text("labelSelector")), field_match(resource, query.text("fieldSelector")))


def _check_version(store: Store, query: Query) -> None:
    version = query.version()
    if version and version > store.version:
        raise StatusError(
            504,
            f"Too large resource version: {version}, current: {store.version}",
            details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
            retry_after=1,
        )
    if query.text("resourceVersionMatch") == "Exact" and version and version < store.version:
        raise StatusError(410, "The provided resource version is too old.", reason="Expired")


def page(store: Store, resource: ServedResource, namespace: str, query: Query) -> tuple[list[ShelfEntry], Object]:
    """The entries of one page and the list's metadata. Raises ApiError 400, 410, 504."""
    match = matcher(resource, query)
    limit = query.number("limit") or 0
    token = query.text("continue")
    start = 0
    if token:
        version, after = _read_token(token)
        version, everything = store.pages(resource, version)
        start = bisect_right(everything, after, key=lambda item: item[0])
    else:
        _check_version(store, query)
        version, everything = store.pages(resource, None)
    meta: Object = {"resourceVersion": str(version)}
    found: list[ShelfEntry] = []
    if not limit and match is None and not namespace and not start:
        return [entry for _, entry in everything], meta
    total = len(everything)
    for at in range(start, total):
        key, entry = everything[at]
        if (namespace and key[0] != namespace) or (match is not None and not match(entry.obj)):
            continue
        if limit and len(found) == limit:
            store.keep_pages(resource, version, everything)
            meta["continue"] = _token(version, everything[at - 1][0])
            if match is None and not namespace:  # as in kube-apiserver only where it costs nothing
                meta["remainingItemCount"] = total - at
            break
        found.append(entry)
    return found, meta


def wants_table(accept: str) -> bool:
    """Whether a client prefers the Table form (kubectl get)."""
    first = accept.split(",", 1)[0]
    return "as=Table" in first and "v=v1" in first


def list_body(store: Store, resource: ServedResource, namespace: str, query: Query, *, accept: str) -> bytes:
    """The answer of a list, as JSON."""
    entries, meta = page(store, resource, namespace, query)
    if wants_table(accept):
        objects = [views.served(resource, entry.obj) for entry in entries]
        include = query.text("includeObject") or "Metadata"
        return orjson.dumps(table(resource, objects, meta, now=time.time(), include=include))
    head = orjson.dumps({"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta})
    items = b",".join([views.encoded(resource, entry) for entry in entries])
    return head[:-1] + b',"items":[' + items + b"]}\n"
