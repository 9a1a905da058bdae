# SPDX-License-Identifier: Apache-2.0
"""The syntax tree of a device selector as protobuf messages, and the names of unsupported features (dra.md 3).

The library returns and accepts a tree as a serialized message of the package `cel.expr`. This module declares the part
of its schema that koordpy reads; other fields are kept. It does not import the CEL library.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

QUANTITY, VERSION = "kubernetes.Quantity", "kubernetes.Semver"
"""Names of Kubernetes' two types in CEL; protobuf messages represent them."""
QUANTITY_KEY, FORM, VERSION_KEY = "in", "true", "null"
"""Fields of the messages. They are keywords of CEL: an expression can select them only in backticks, which
`first_refusal` refuses."""
MAX_LOOPS = 2
"""Maximum nesting of macros that loop."""

Tree = Any
"""A message `koordpy.cel.Expr`, with the field numbers of `cel.expr.Expr`."""


class TreeTooDeep(Exception):
    """Raised if protobuf cannot read a tree, because its messages are nested more than 100 deep."""


class TreeFault(Exception):
    """A fault in an expression that the library does not find."""

    def __init__(self, offset: int, text: str) -> None:
        """offset: place in the expression, in characters."""
        super().__init__(text)
        self.offset = offset


_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "int64": _FIELD.TYPE_INT64,
    "int32": _FIELD.TYPE_INT32,
    "uint64": _FIELD.TYPE_UINT64,
    "double": _FIELD.TYPE_DOUBLE,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
}
_SCHEMA: dict[str, str] = {
    "Any": "type_url=1 string; value=2 bytes",
    "Expr": "id=2 int64; const_expr=3 Constant oneof; ident_expr=4 Ident oneof; select_expr=5 Select oneof; "
    "call_expr=6 Call oneof; list_expr=7 List oneof; struct_expr=8 Struct oneof; comprehension_expr=9 Loop oneof",
    "Constant": "null_value=1 int32 oneof; bool_value=2 bool oneof; int64_value=3 int64 oneof; "
    "uint64_value=4 uint64 oneof; double_value=5 double oneof; string_value=6 string oneof; bytes_value=7 bytes oneof",
    "Ident": "name=1 string",
    "Select": "operand=1 Expr; field=2 string; test_only=3 bool",
    "Call": "target=1 Expr; function=2 string; args=3 Expr repeated",
    "List": "elements=1 Expr repeated; optional_indices=2 int32 repeated",
    "Entry": "id=1 int64; field_key=2 string oneof; map_key=3 Expr oneof; value=4 Expr; optional_entry=5 bool",
    "Struct": "message_name=1 string; entries=2 Entry repeated",
    "Loop": "iter_var=1 string; iter_range=2 Expr; accu_var=3 string; accu_init=4 Expr; loop_condition=5 Expr; "
    "loop_step=6 Expr; result=7 Expr; iter_var2=8 string",
    "Empty": "",
    "ListType": "elem_type=1 Type",
    "MapType": "key_type=1 Type; value_type=2 Type",
    "Type": "dyn=1 Empty oneof; primitive=3 int32 oneof; well_known=5 int32 oneof; list_type=6 ListType oneof; "
    "map_type=7 MapType oneof; message_type=9 string oneof; abstract_type=14 Abstract oneof",
    "Abstract": "name=1 string; parameter_types=2 Type repeated",
    "Reference": "name=1 string; overload_id=3 string repeated",
    "ReferenceEntry": "key=1 int64; value=2 Reference",
    "TypeEntry": "key=1 int64; value=2 Type",
    "PositionEntry": "key=1 int64; value=2 int32",
    "Source": "positions=4 PositionEntry repeated",
    "Parsed": "expr=2 Expr; source_info=3 Source",
    "Checked": "reference_map=2 ReferenceEntry repeated; type_map=3 TypeEntry repeated; expr=4 Expr; "
    "source_info=5 Source",
}
"""Message -> fields, as far as they are read. Other fields are kept as they are."""


def _messages() -> Mapping[str, Any]:
    """Returns the classes of the messages in `_SCHEMA`."""
    file = descriptor_pb2.FileDescriptorProto(name="koordpy/cel_syntax.proto", package="koordpy.cel", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field in filter(None, fields.split("; ")):
            (key, _, number), (kind, *how) = field.split(" ")[0].partition("="), field.split(" ")[1:]
            made = message.field.add(name=key, number=int(number), label=_FIELD.LABEL_OPTIONAL)
            made.type = _TYPES.get(kind, _FIELD.TYPE_MESSAGE)
            if kind not in _TYPES:
                made.type_name = f".koordpy.cel.{kind}"
            if how == ["repeated"]:
                made.label = _FIELD.LABEL_REPEATED
            if how == ["oneof"]:
                if not message.oneof_decl:
                    message.oneof_decl.add(name="kind")
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"koordpy.cel.{name}")) for name in _SCHEMA
    }


_MESSAGES = _messages()


def read_tree(serialized: bytes, kind: str) -> tuple[Any, Any]:
    """Returns (the `Any` that cel-expr-python serialized, the `Parsed` or `Checked` in it, as `kind` says).

    Its `expr` is the tree. Raises `TreeTooDeep`.
    """
    try:
        wrapper = _MESSAGES["Any"].FromString(serialized)
        return wrapper, _MESSAGES[kind].FromString(wrapper.value)
    except DecodeError as fault:
        raise TreeTooDeep from fault


def as_expression(wrapper: Any, tree: Tree) -> bytes:
    """Returns a part of a checked tree as a serialized `Checked`, without positions. wrapper: of the whole tree."""
    made = _MESSAGES["Any"](type_url=wrapper.type_url, value=_MESSAGES["Checked"](expr=tree).SerializeToString())
    return bytes(made.SerializeToString())


def new_node(**fields: Any) -> Tree:
    """Returns a node with the given fields."""
    return _MESSAGES["Expr"](**fields)


def children(tree: Tree) -> Iterator[Tree]:
    """Yields the direct operands of a node."""
    kind = tree.WhichOneof("kind")
    node: Any = getattr(tree, kind) if kind else None
    if kind == "select_expr":
        yield node.operand
    elif kind == "call_expr":
        if node.HasField("target"):
            yield node.target
        yield from node.args
    elif kind == "list_expr":
        yield from node.elements
    elif kind == "struct_expr":
        for entry in node.entries:
            if entry.HasField("map_key"):
                yield entry.map_key
            yield entry.value
    elif kind == "comprehension_expr":
        yield from (node.iter_range, node.accu_init, node.loop_condition, node.loop_step, node.result)


def type_text(kind: Any) -> str:
    """Returns a type of the type checker as Kubernetes writes it, such as `list(int)`."""
    of = kind.WhichOneof("kind")
    if of == "primitive":
        return ("", "bool", "int", "uint", "double", "string", "bytes")[kind.primitive]
    if of == "list_type":
        return f"list({type_text(kind.list_type.elem_type)})"
    if of == "map_type":
        return f"map({type_text(kind.map_type.key_type)}, {type_text(kind.map_type.value_type)})"
    if of == "abstract_type":
        return f"{kind.abstract_type.name}({', '.join(type_text(one) for one in kind.abstract_type.parameter_types)})"
    return str(kind.message_type) if of == "message_type" else "dyn"


_NO_FUNCTIONS = frozenset(
    one
    for line in (
        "find findAll format format.named validate strings.quote lists.range bytes timestamp duration",
        "optional.unwrap unwrapOpt",
        "url isURL getScheme getHost getHostname getPort getEscapedPath getQuery",
        "ip isIP ip.isCanonical family isUnspecified isLoopback isGlobalUnicast",
        "isLinkLocalMulticast isLinkLocalUnicast cidr isCIDR containsIP containsCIDR masked prefixLength",
        "getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours getMilliseconds getMinutes getMonth",
        "getSeconds",
    )
    for one in line.split()
)
"""Functions of Kubernetes' CEL that are not served."""
_NO_MACROS = {"@sortByAssociatedKeys": "sortBy", "transformList": "transformList", "transformMap": "transformMap",
              "transformMapEntry": "transformMapEntry", "sortBy": "sortBy"}  # fmt: skip
_TWO_VARIABLES = frozenset(("all", "exists", "existsOne", "exists_one"))


def asks_for_field(parsed: bytes, field: str) -> bool:
    """Returns whether a parsed expression has `has(device.FIELD)`. Raises `TreeTooDeep`."""

    def asks(tree: Tree) -> bool:
        node = tree.select_expr
        if node.test_only and node.field == field and node.operand.ident_expr.name == "device":
            return True
        return any(asks(child) for child in children(tree))

    return asks(read_tree(parsed, "Parsed")[1].expr)


def first_refusal(parsed: bytes) -> str | None:
    """Returns the first unsupported feature in the text of a parsed, unchecked expression; None if all are supported.

    The returned text follows `unsupported: `. Raises `TreeTooDeep`.
    """
    _, root = read_tree(parsed, "Parsed")
    positions = {one.key: one.value for one in root.source_info.positions}
    found: list[tuple[int, str]] = []

    def visit(tree: Tree, loops: int) -> None:
        if (what := _refusal(tree)) is not None:
            found.append((positions.get(tree.id, 0), what))
        if tree.WhichOneof("kind") == "comprehension_expr":
            node = tree.comprehension_expr
            # cel.bind and optMap are loops without items
            inside = loops + (
                node.iter_range.WhichOneof("kind") != "list_expr" or bool(node.iter_range.list_expr.elements)
            )
            if inside > MAX_LOOPS and loops <= MAX_LOOPS:
                found.append((positions.get(tree.id, 0), f"CEL comprehensions nested deeper than {MAX_LOOPS}"))
            for one in (node.iter_range, node.accu_init):
                visit(one, loops)
            for one in (node.loop_condition, node.loop_step, node.result):
                visit(one, inside)
            return
        for child in children(tree):
            visit(child, loops)

    visit(root.expr, 0)
    return min(found)[1] if found else None


def _refusal(tree: Tree) -> str | None:
    """Returns the unsupported feature that a node uses; None if there is none."""
    kind = tree.WhichOneof("kind")
    if kind == "const_expr" and tree.const_expr.WhichOneof("kind") == "bytes_value":
        return "CEL bytes literals"
    if kind == "list_expr" and tree.list_expr.optional_indices:
        return "CEL literals with optional elements, [?x]"
    if kind == "struct_expr":
        if tree.struct_expr.message_name:
            return f"CEL messages of type {tree.struct_expr.message_name}"
        for entry in tree.struct_expr.entries:
            if entry.optional_entry:
                return "CEL literals with optional entries, {?k: v}"
            if "\0" in entry.map_key.const_expr.string_value:
                return "CEL map keys with a NUL character"
        keys = [
            str(entry.map_key.const_expr) for entry in tree.struct_expr.entries if entry.map_key.HasField("const_expr")
        ]
        if len(set(keys)) < len(keys):
            return "CEL map literals with equal keys"
    if kind == "select_expr" and tree.select_expr.field in (QUANTITY_KEY, FORM, VERSION_KEY):
        return "CEL names in backticks"
    if kind != "call_expr":
        return None
    call = tree.call_expr
    name = call.function
    if name in _NO_MACROS:
        return f"CEL macro {_NO_MACROS[name]}()"
    if name in _TWO_VARIABLES and call.HasField("target") and len(call.args) == 3:
        return f"CEL macro {name}()"
    if call.HasField("target") and call.target.WhichOneof("kind") == "ident_expr":
        whole = f"{call.target.ident_expr.name}.{name}"
        if whole in _NO_FUNCTIONS or whole.startswith("format."):
            return f"CEL function {whole}()"
    return f"CEL function {name}()" if name in _NO_FUNCTIONS else None
