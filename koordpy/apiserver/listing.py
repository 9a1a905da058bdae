# SPDX-License-Identifier: Apache-2.0
"""Answers list requests: selectors, pages, the rules of resourceVersion, and the Table form for `kubectl get`.

All pages of one list show the same state of the store. A `continue` token has the version of this state and the key of
the last object that was sent.
"""

import base64
from bisect import bisect_right
from collections.abc import Iterable

import orjson

from koordpy.apiserver.api_calls import Call, Query
from koordpy.apiserver.list_selectors import Match, field_matches, label_matches
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import ShelfEntry, encoded
from koordpy.apiserver.served_resources import Object, ServedResource
from koordpy.apiserver.status_errors import StatusError
from koordpy.apiserver.table_documents import table_of


def _token(version: int, key: tuple[str, str]) -> str:
    """Returns a `continue` token. key: (namespace, name) of the last object that was sent."""
    body = orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": key})
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _read_token(text: str) -> tuple[int, tuple[str, str]]:
    """Returns (version, key) of a `continue` token. Raises StatusError 400."""
    try:
        found = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        namespace, name = found["start"]
        return int(found["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError):
        raise StatusError(400, "continue key is not valid") from None


def matches_of(call: Call) -> list[Match]:
    """Returns match functions for a call's namespace and selectors; none if all objects match. Raises StatusError
    400."""
    labels, fields = call.query.text("labelSelector"), call.query.text("fieldSelector")
    own: list[Match] = [lambda obj: obj["metadata"].get("namespace") == call.namespace] if call.namespace else []
    return [*own, *label_matches(labels), *field_matches(call.resource, fields)]


def _check_version(store: Store, query: Query) -> None:
    """Checks the requested version of a list.

    Raises StatusError 504 if the version is in the future. Raises 410 if exactly an older version is requested, because
    old states are not stored.
    """
    version = query.version()
    if version and version > store.version:
        raise StatusError(
            504,
            f"Too large resource version: {version}, current: {store.version}",
            details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
            retry_after=1,
        )
    if query.text("resourceVersionMatch") == "Exact" and version and version < store.version:
        raise StatusError(410, "The provided resource version is too old.")


def page(store: Store, call: Call) -> tuple[list[ShelfEntry], Object]:
    """Returns (entries of one page, metadata of the list). Raises StatusError 400, 410, 504."""
    resource, query, matches = call.resource, call.query, matches_of(call)
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
    for at in range(start, len(everything)):
        _, entry = everything[at]
        if not all(match(entry.obj) for match in matches):
            continue
        if limit and len(found) == limit:
            store.keep_pages(resource, version, everything)
            meta["continue"] = _token(version, everything[at - 1][0])
            if not matches:  # as in kube-apiserver, only if no selector has to be evaluated
                meta["remainingItemCount"] = len(everything) - at
            break
        found.append(entry)
    return found, meta


def listed(resource: ServedResource, entries: Iterable[ShelfEntry], meta: Object) -> bytes:
    """Returns a list as JSON, joined from the JSON of its entries. meta: metadata of the list."""
    head = orjson.dumps({"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta})
    items = b",".join([encoded(resource, entry) for entry in entries])
    return head[:-1] + b',"items":[' + items + b"]}\n"


def list_body(store: Store, call: Call) -> bytes:
    """Returns the answer to a list request as JSON. Raises StatusError 400, 410, 504."""
    entries, meta = page(store, call)
    if call.as_table:
        return orjson.dumps(table_of(call, entries, meta, now=store.seconds()))
    return listed(call.resource, entries, meta)
