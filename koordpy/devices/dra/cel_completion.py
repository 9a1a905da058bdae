# SPDX-License-Identifier: Apache-2.0
"""Completes the checked tree of a device selector, so that its evaluation rarely calls Python (docs/rules/dra.md 3).

Four changes are made, on messages of `cel_syntax.py`:

- An index on `device.attributes` or `device.capacity` returns an empty map for an unknown domain.
- Comparisons of quantities and versions become comparisons of their keys (`cel_values.py`). `quantity` and `semver` of
  a constant become constants.
- List functions that the library lacks become loops, from the templates of `cel_templates.py`. They must not be Python
  functions, because the library cannot pass every value to Python: an optional value crashes the process.
- Some functions of strings return the results of Kubernetes instead of those of the library, also by templates.

Two faults are found here because the library does not detect them: literals of mixed types, and constants that cannot
be converted.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from koordpy.devices.dra.cel_functions import form_field
from koordpy.devices.dra.cel_syntax import (
    FORM,
    QUANTITY,
    QUANTITY_KEY,
    VERSION,
    VERSION_KEY,
    Tree,
    TreeFault,
    as_expression,
    children,
    new_node,
    read_tree,
    type_text,
)
from koordpy.devices.dra.cel_templates import CONVERSIONS, ITEMS, Templates, parsed_templates
from koordpy.devices.dra.cel_values import parse_cel_quantity, parse_cel_version

_OF_CONSTANTS = frozenset((*CONVERSIONS, "dyn", "type"))
"""Functions that Kubernetes evaluates for constants when it compiles."""
CAPACITY_VARIABLE = "device.capacity"
"""The type checker sees this field as a variable, because a field of a message cannot be a map of maps."""
_COMPARE = {"isGreaterThan": "_>_", "isLessThan": "_<_"}
_ORDERS = frozenset(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"))
_OF_LIST = "list_"
"""Prefix of the overloads for lists, if strings have functions of the same name."""


class Completion:
    """Completes checked trees. parse: returns the serialized tree of a text, unchecked."""

    def __init__(self, parse: Callable[[str], bytes]) -> None:
        self._templates = parsed_templates(parse)

    def complete(self, checked: bytes) -> "CompleteTree":
        """Returns the tree in the form for evaluation. Raises `TreeTooDeep` and `TreeFault`."""
        wrapper, root = read_tree(checked, "Checked")
        work = _Work(root, self._templates)
        work.visit(root.expr)
        if work.faults:
            raise min(work.faults, key=lambda fault: fault.offset)
        constants = [as_expression(wrapper, one) for one in work.conversions]
        patterns = [(at, as_expression(wrapper, one)) for at, one in work.patterns]
        wrapper.value = root.SerializeToString()
        return CompleteTree(wrapper.SerializeToString(), work.reads_device, constants, patterns)


class CompleteTree(NamedTuple):
    """A tree that can be evaluated, serialized."""

    tree: bytes
    reads_device: bool
    """True if the device is read at all."""
    constants: list[bytes]
    """Subtrees that convert constants: an error in the evaluation of one is a fault of the expression."""
    patterns: list[tuple[int, bytes]]
    """(position, test) of each constant regular expression: an error of the test is a fault of the expression."""


class _Work:
    """Completes one tree. Children are changed before their parents, and a changed node keeps its id and type."""

    def __init__(self, root: Tree, templates: Templates) -> None:
        self._types = {one.key: one.value for one in root.type_map}
        self._overloads = {one.key: list(one.value.overload_id) for one in root.reference_map}
        references = [one for one in root.reference_map if one.value.name != CAPACITY_VARIABLE]
        del root.reference_map[:]
        root.reference_map.extend(references)
        self._templates = templates
        self._next = max([1, *(one.key for one in root.source_info.positions), *self._types]) + 1
        self._origin: dict[int, str] = {}
        """Node id -> `attributes` or `capacity`, for values below this field of the device."""
        self._places = {one.key: one.value for one in root.source_info.positions}
        self.reads_device = False
        self.faults: list[TreeFault] = []
        self.conversions: list[Tree] = []
        self.patterns: list[tuple[int, Tree]] = []
        self._constants: set[int] = set()
        """Ids of nodes that are constants, or conversions of constants."""

    def visit(self, tree: Tree) -> None:
        """Completes a node and all below it."""
        for child in children(tree):
            self.visit(child)
        kind = tree.WhichOneof("kind")
        if kind == "ident_expr" and tree.ident_expr.name in ("device", ".device"):
            self.reads_device = True
        elif kind == "ident_expr" and tree.ident_expr.name == CAPACITY_VARIABLE:
            self.reads_device = True
            self._origin[tree.id] = "capacity"
            self._put(tree, self._key(self._ident("device"), "capacity"))
        elif kind == "select_expr":
            self._select(tree)
        elif kind == "call_expr":
            self._call(tree)
        elif kind == "const_expr":
            self._constants.add(tree.id)
        elif kind == "comprehension_expr":
            self._run_to_the_end(tree.comprehension_expr)
        elif kind == "list_expr":
            self._check_types(list(tree.list_expr.elements))
        elif kind == "struct_expr":
            self._check_types([one.map_key for one in tree.struct_expr.entries])
            self._check_types([one.value for one in tree.struct_expr.entries])

    def _run_to_the_end(self, loop: Tree) -> None:
        """Makes a loop visit all items, with the same result.

        Otherwise, after a loop that ends early, the library gives the last item to a later `cel.bind` as its value.
        """
        if loop.loop_condition.const_expr.WhichOneof("kind") is None:  # the condition of cel.bind is false
            loop.loop_condition.CopyFrom(self._constant(True))

    def _check_types(self, items: list[Tree]) -> None:
        """Raises a fault for the first item of a literal that has another type than the first item."""
        kinds = [self._types[one.id] for one in items if one.id in self._types]
        if len(kinds) != len(items):
            return  # a node that this class has created
        for item, kind in zip(items, kinds, strict=True):
            if kind != kinds[0]:
                text = f"expected type '{type_text(kinds[0])}' but found '{type_text(kind)}'"
                self.faults.append(TreeFault(self._places.get(item.id, 0), text))
                return

    def _select(self, tree: Tree) -> None:
        """Completes `x.f` and `has(x.f)`."""
        operand, field = tree.select_expr.operand, tree.select_expr.field
        message = self._types[operand.id].message_type if operand.id in self._types else ""
        if message == "kubernetes.DRADevice":
            self._origin[tree.id] = field
        elif operand.id in self._origin:
            self._origin[tree.id] = self._origin[operand.id]
        if self._is_by_domain(operand):
            if tree.select_expr.test_only:
                self._put(tree, self._constant(True))
            else:
                self._put(tree, self._domain(operand, self._constant(field)))
        elif tree.select_expr.test_only and self._type_of(operand) == "dyn":
            names = self._names()
            test = new_node()
            test.CopyFrom(tree)
            test.id = self._fresh().id
            test.select_expr.operand.CopyFrom(self._ident(names["t"]))
            is_map = self._copy(self._templates.bodies["has", 1], names)
            self._put(tree, self._bind(names["t"], operand, self._new("_&&_", is_map, test)))

    def _call(self, tree: Tree) -> None:
        """Completes a function or operator."""
        call = tree.call_expr
        name, args = call.function, list(call.args)
        if name in _OF_CONSTANTS and len(args) == 1 and args[0].id in self._constants:
            self._constants.add(tree.id)
            self.conversions.append(tree)
        if name == "matches" and args[-1].WhichOneof("kind") == "const_expr":
            test = self._new("matches", self._constant(""), args[-1])
            self.patterns.append((self._places.get(args[-1].id, 0), test))
        elif name == "@in" and args[1].WhichOneof("kind") == "list_expr" and not args[1].list_expr.elements:
            self._put(tree, self._constant(False))  # also if the left side is an error
        elif name in ("_[_]", "_[?_]", "_?._"):
            if args[0].id in self._origin:
                self._origin[tree.id] = self._origin[args[0].id]
            if self._is_by_domain(args[0]):
                found = self._domain(args[0], args[1])
                self._put(tree, found if name == "_[_]" else self._new("optional.of", found))
            elif name != "_[_]" and self._type_of(args[0]) == "dyn":
                self._replace(tree)
        elif name in ("quantity", "semver"):
            self._constant_value(tree)
        elif name in _COMPARE:
            if (keys := self._keys(tree)) is not None:
                self._put(tree, self._new(_COMPARE[name], *keys))
        elif name in _ORDERS and args[0].call_expr.function == "compareTo" and self._is_zero(args[1]):
            if (keys := self._keys(args[0])) is not None:
                self._put(tree, self._new(name, *keys))
        else:
            self._replace(tree)

    def _replace(self, tree: Tree) -> None:
        """Replaces a function by its template, if there is a template for the types of its arguments."""
        call = tree.call_expr
        name, args = call.function, list(call.args)
        if call.HasField("target"):
            args.insert(0, call.target)
        names = self._names()
        overloads = self._overloads.get(tree.id, [])
        body = self._templates.bodies.get((name, len(args)))
        if name in self._templates.loops and any(one.startswith(_OF_LIST) for one in overloads):
            exact = overloads[0] if len(overloads) == 1 else name
            made = self._loop(self._templates.loops.get(exact) or self._templates.loops[name], names)
            if (item := exact.split("_")[1:2]) and item[0] in ITEMS:
                test = self._copy(self._templates.bodies["list", 1], {**names, "x": item[0]})
                made = self._new("_?_:_", test, made, self._constant(False))
            if not all(one.startswith(_OF_LIST) for one in overloads):
                other = self._new(name, self._ident(names["x"]))
                other.call_expr.target.CopyFrom(self._ident(names["t"]))
                made = self._new("_?_:_", self._copy(self._templates.bodies[name, 2], names), made, other)
        elif body is not None and (len(args) == 3 or name not in self._templates.loops):
            if name in CONVERSIONS and self._type_of(args[0]) not in (CONVERSIONS[name], "dyn"):
                return
            if name in _ORDERS and "double" not in map(self._type_of, args):
                return
            made = self._copy(body, names)
        else:
            return
        variables = "txo" if call.HasField("target") or name[0] == "_" else "xo"
        for variable, value in reversed(list(zip(variables, args, strict=False))):
            made = self._bind(names[variable], value, made)
        self._put(tree, made)

    def _names(self) -> Mapping[str, str]:
        """Returns variable of the templates -> a new name."""
        return {one: f"@{one}{self._next}" for one in "retxo"}

    def _type_of(self, tree: Tree) -> str:
        """Returns the type of a node, as Kubernetes writes it."""
        return type_text(self._types[tree.id]) if tree.id in self._types else "dyn"

    def _is_by_domain(self, tree: Tree) -> bool:
        """Returns whether a node is `device.attributes` or `device.capacity`.

        Its type says so: a map to maps of values of any type or of quantities.
        """
        kind: Tree = self._types.get(tree.id)
        for _ in range(2):
            if kind is None or kind.WhichOneof("kind") != "map_type":
                return False
            kind = kind.map_type.value_type
        return bool(kind.HasField("dyn") or kind.message_type == QUANTITY)

    def _domain(self, tree: Tree, key: Tree) -> Tree:
        """Returns `tree[?key].orValue({})`."""
        empty = self._fresh()
        empty.struct_expr.SetInParent()
        found = self._new("orValue", empty)
        found.call_expr.target.CopyFrom(self._new("_[?_]", tree, key))
        return found

    def _constant_value(self, tree: Tree) -> None:
        """Makes `quantity("80Gi")` and `semver("1.2.3")` constants.

        An invalid text stays, so that its evaluation fails.
        """
        args = tree.call_expr.args
        values = [one.const_expr for one in args]
        if not all(one.WhichOneof("kind") == "const_expr" for one in args):
            return
        made = self._fresh()
        try:
            if tree.call_expr.function == "quantity":
                quantity = parse_cel_quantity(values[0].string_value)
                made.struct_expr.message_name = QUANTITY
                self._entry(made, QUANTITY_KEY, self._constant(quantity.key))
                self._entry(made, FORM, self._list(*map(self._constant, form_field(quantity))))
            else:
                version = parse_cel_version(values[0].string_value, len(values) > 1 and values[1].bool_value)
                made.struct_expr.message_name = VERSION
                self._entry(made, VERSION_KEY, self._constant(version.key))
        except ValueError:
            return
        self._put(tree, made)

    def _entry(self, tree: Tree, field: str, value: Tree) -> None:
        """Adds a field to a message."""
        entry = tree.struct_expr.entries.add(id=self._fresh().id, field_key=field)
        entry.value.CopyFrom(value)

    def _keys(self, tree: Tree) -> tuple[Tree, Tree] | None:
        """Returns the keys of both sides of a comparison; None if their types are known only at evaluation."""
        overloads = self._overloads.get(tree.id, ())
        sides = (tree.call_expr.target, tree.call_expr.args[0])
        kinds = {one.partition("_")[0] for one in overloads}
        if len(kinds) > 1:
            origins = {self._origin[one.id] for one in sides if one.id in self._origin}
            kinds = {"quantity" if one == "capacity" else "semver" for one in origins}
        if len(kinds) != 1:
            return None
        field = QUANTITY_KEY if kinds == {"quantity"} else VERSION_KEY
        return self._key(sides[0], field), self._key(sides[1], field)

    def _key(self, tree: Tree, field: str) -> Tree:
        """Returns a field of a message, such as the key of a quantity or version."""
        for entry in tree.struct_expr.entries:
            if entry.field_key == field:
                return entry.value
        made = self._fresh()
        made.select_expr.operand.CopyFrom(tree)
        made.select_expr.field = field
        return made

    def _is_zero(self, tree: Tree) -> bool:
        """Returns whether a node is the constant 0."""
        return bool(tree.const_expr.WhichOneof("kind") == "int64_value" and tree.const_expr.int64_value == 0)

    def _loop(self, template: tuple[Tree, ...], names: Mapping[str, str]) -> Tree:
        """Returns a loop over the list `t`. names: variable of the template -> name here."""
        start, step, result = (self._copy(one, names) for one in template)
        made = self._fresh()
        loop = made.comprehension_expr
        loop.iter_var, loop.accu_var = names["e"], names["r"]
        loop.iter_range.CopyFrom(self._ident(names["t"]))
        loop.accu_init.CopyFrom(start)
        loop.loop_condition.CopyFrom(self._constant(True))
        loop.loop_step.CopyFrom(step)
        loop.result.CopyFrom(result)
        return made

    def _bind(self, name: str, value: Tree, body: Tree) -> Tree:
        """Returns `cel.bind(name, value, body)`."""
        made = self._fresh()
        loop = made.comprehension_expr
        loop.iter_var, loop.accu_var = f"@unused{made.id}", name
        loop.iter_range.CopyFrom(self._list())
        loop.accu_init.CopyFrom(value)
        loop.loop_condition.CopyFrom(self._constant(False))
        loop.loop_step.CopyFrom(self._ident(name))
        loop.result.CopyFrom(body)
        return made

    def _copy(self, tree: Tree, names: Mapping[str, str]) -> Tree:
        """Returns a copy of a template with new ids and names."""
        made = new_node()
        made.CopyFrom(tree)

        def renew(node: Tree) -> None:
            node.id = self._fresh().id
            if node.WhichOneof("kind") == "ident_expr":
                node.ident_expr.name = names.get(node.ident_expr.name, node.ident_expr.name)
            for child in children(node):
                renew(child)

        renew(made)
        return made

    def _fresh(self) -> Tree:
        """Returns an empty node with a new id."""
        self._next += 1
        return new_node(id=self._next)

    def _new(self, function: str, *args: Tree) -> Tree:
        """Returns a call without a target."""
        made = self._fresh()
        made.call_expr.function = function
        made.call_expr.args.extend(args)
        return made

    def _ident(self, name: str) -> Tree:
        made = self._fresh()
        made.ident_expr.name = name
        return made

    def _list(self, *items: Tree) -> Tree:
        made = self._fresh()
        made.list_expr.SetInParent()
        made.list_expr.elements.extend(items)
        return made

    def _constant(self, value: bool | float | str) -> Tree:
        """Returns a constant."""
        made = self._fresh()
        kind = {bool: "bool_value", float: "double_value", str: "string_value"}[type(value)]
        setattr(made.const_expr, kind, value)
        return made

    def _put(self, tree: Tree, made: Tree) -> None:
        """Puts a new node in the place of another, under the id of the other."""
        at = tree.id
        new = new_node()
        new.CopyFrom(made)
        tree.Clear()
        tree.CopyFrom(new)
        tree.id = at
