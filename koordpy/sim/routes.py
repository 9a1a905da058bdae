"""From a request's path and query to what is asked for."""

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from koordpy.sim import errors
from koordpy.sim.errors import StatusError
from koordpy.sim.resources import Registry, ServedResource


@dataclass(frozen=True, slots=True)
class Query:
    """The options of a request."""

    values: dict[str, str]

    def text(self, name: str) -> str:
        return self.values.get(name, "")

    def flag(self, name: str) -> bool:
        return self.values.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        """A whole number; StatusError 400 where it is none."""
        raw = self.values.get(name, "")
        if not raw:
            return None
        try:
            return int(raw)
        except ValueError:
            raise StatusError(400, f"invalid value {raw!r} for {name}") from None

    def version(self) -> int | None:
        """resourceVersion; None when it is not given."""
        found = self.number("resourceVersion")
        if found is not None and found < 0:
            raise StatusError(400, "invalid resourceVersion")
        return found


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked for: `name` is empty for a collection, `namespace` for all of them or a cluster-scoped resource."""

    resource: ServedResource
    namespace: str
    name: str
    part: str
    """The subresource, or empty."""

    query: Query
    accept: str

    @property
    def as_table(self) -> bool:
        """Whether a client prefers the Table form (kubectl get)."""
        first = self.accept.split(",", 1)[0]
        return "as=Table" in first and "v=v1" in first


def path_of(target: str) -> str:
    """The decoded path of a request's target."""
    path = target.partition("?")[0]
    return unquote(path) if "%" in path else path


def call_of(registry: Registry, target: str, accept: str = "application/json") -> Call | None:
    """What the path of a served resource names, None for another path. StatusError 404 for another scope."""
    parts = path_of(target).strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    name, part = rest[1] if len(rest) > 1 else "", "/".join(rest[2:])
    resource = registry.at(group, version, rest[0])
    if resource is None:
        return None
    if namespace if not resource.namespaced else name and not namespace:
        raise errors.no_such_path()
    query = Query(dict(parse_qsl(target.partition("?")[2], keep_blank_values=True)))
    return Call(resource, namespace, name, part, query, accept)
