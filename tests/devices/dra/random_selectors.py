# SPDX-License-Identifier: Apache-2.0
"""Random device selectors, mostly well typed: an expression of each type from a grammar over the devices below."""

import random
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
GPU, NIC = "gpu.example.com", "nic.example.com"

DEVICES: list[Json] = [
    {
        "driver": GPU,
        "allowMultipleAllocations": True,
        "attributes": {
            "model": {"string": "H100-SXM"},
            "index": {"int": 3},
            "healthy": {"bool": True},
            "firmware": {"version": "1.2.3-rc.1+build.5"},
            f"{NIC}/rail": {"string": "héllo wörld"},
        },
        "capacity": {"memory": {"value": "80Gi"}, "share": {"value": "500m"}, f"{NIC}/lanes": {"value": "16"}},
    },
    {
        "driver": GPU,
        "attributes": {
            "model": {"string": "a,b,,c"},
            "index": {"int": -9223372036854775808},
            "healthy": {"bool": False},
            "firmware": {"version": "18446744073709551615.0.10"},
        },
        "capacity": {"memory": {"value": "1Pi"}, "share": {"value": "1"}},
    },
    {
        "driver": GPU,
        "attributes": {
            "model": {"string": ""},
            "index": {"int": 0},
            "healthy": {"bool": True},
            "firmware": {"version": "1.2.3"},
            f"{NIC}/rail": {"string": "7"},
        },
        "capacity": {"memory": {"value": "0"}, "share": {"value": "100"}},
    },
    {"driver": NIC, "attributes": {"index": {"int": 9223372036854775807}, f"{GPU}/model": {"string": "1.2.3"}}},
    {"driver": GPU},
    {"driver": GPU, "attributes": {"odd": {}}},
]
"""Devices as in the API: full, with extreme values, with empty values, of another driver, without anything, with an
attribute of an unknown type."""

TEXTS = ['""', '"a"', '"b"', '"H100"', '"H100-SXM"', '","', '"é"', '"héllo wörld"', '"1.2.3"', '"7"', "r'\\d+'",
         '"80Gi"', '" x "', '"o"', "'a\\tb'", '"v1.2"', '"1"']  # fmt: skip
NUMBERS = ["0", "1", "2", "3", "-1", "7", "9223372036854775807", "-9223372036854775808", "0x10"]
UNSIGNED = ["0u", "1u", "3u", "18446744073709551615u"]
DOUBLES = ["0.0", "1.0", "2.5", "-1.5", "1e3", "1e300", "0.1"]
AMOUNTS = ['"80Gi"', '"500m"', '"1"', '"0.5"', '"1000m"', '"1Pi"', '"-3"', '"1e3"', '"100"', '"0"', '"1.5Gi"', '"1n"',
           '"12E"', '"x"', '"0.0000000001"', '"99999999999999999999"']  # fmt: skip
VERSIONS = ['"1.2.3"', '"1.2.3-rc.1"', '"1.2.3-rc.1+other"', '"2.0.0"', '"1.10.0"', '"18446744073709551615.0.10"',
            '"1.2"', '"1.2.3-rc.1.1"', '"1.2.3-alpha"', '"01.2.3"', '"x"']  # fmt: skip
KINDS = ["int", "string", "bool", "double", "list", "uint", "map", "null_type"]
SUFFIXES = ["", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e", "E", "i"]
PATTERNS = ['"^H"', '"[0-9]+"', '"^$"', '"l{2}"', '"(a|b)"', '"^.{5}"', '"SXM$"', '"(?i)h100"', '"\\\\d"', '"("']


class SelectorMaker:
    """Makes expressions. Each method returns an expression of one type, of at most `depth` levels."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names: dict[str, list[str]] = {}
        """Type -> variables of loops and bindings that are in scope."""
        self.loops = 0

    def selector(self) -> str:
        """Returns an expression that is a bool, now and then of another type."""
        self.names, self.loops = {}, 0
        if self.rng.random() < 0.02:
            return self.of(self.rng.choice(["int", "text", "quantity", "version", "list(int)", "dyn"]), 3)
        return self.of("bool", self.rng.choice((2, 3, 3, 4, 4, 5)))

    def of(self, kind: str, depth: int) -> str:
        """Returns an expression of a type."""
        known = self.names.get(kind, [])
        if known and self.rng.random() < 0.35:
            return self.rng.choice(known)
        if self.rng.random() < 0.004:  # a mistake of the author
            kind = self.rng.choice(["bool", "int", "text", "double"])
        if depth > 1 and self.rng.random() < 0.06:
            return f"({self.of('bool', depth - 1)} ? {self.of(kind, depth - 1)} : {self.of(kind, depth - 1)})"
        if depth > 1 and self.rng.random() < 0.04:
            return self.bound(kind, depth)
        if depth > 1 and self.rng.random() < 0.04:
            return f"{self.of(f'optional({kind})', depth - 1)}.orValue({self.of(kind, depth - 1)})"
        name = kind.partition("(")[0]
        inner = kind[len(name) + 1 : -1]
        make: Callable[..., str] = getattr(self, f"{name}_")
        return make(inner, depth) if inner else make(depth)

    def any_of(self, *makers: Callable[[], str]) -> str:
        return self.rng.choice(makers)()

    def bound(self, kind: str, depth: int) -> str:
        of = self.rng.choice(["int", "text", "bool", "version", "quantity", "map"])
        value = self.domain() if of == "map" else self.of(of, depth - 1)
        name = f"v{len(self.names.get(of, []))}{of[0]}"
        self.names.setdefault(of, []).append(name)
        body = self.of(kind, depth - 1)
        self.names[of].pop()
        return f"cel.bind({name}, {value}, {body})"

    def amount(self) -> str:
        """The text of a quantity, now and then an invalid one."""
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice(AMOUNTS)
        whole = rng.choice(["", "0", "1", "9", str(rng.randrange(10 ** rng.randrange(1, 22)))])
        fraction = rng.choice(["", "", "", ".", ".0", f".{rng.randrange(10 ** rng.randrange(1, 22))}", f".{'0' * 19}"])
        suffix = rng.choice(SUFFIXES)
        if suffix in ("e", "E"):
            suffix += rng.choice(["", "+", "-"]) + str(rng.choice([0, 1, 3, 9, 18, 19, 2**32 + 1, rng.randrange(40)]))
        return f'"{rng.choice(["", "", "", "-", "+"])}{whole}{fraction}{suffix}"'

    def version(self) -> str:
        """The text of a version, now and then an invalid one."""
        rng = self.rng
        if rng.random() < 0.7:
            return rng.choice(VERSIONS)
        numbers = ".".join(rng.choice(["0", "1", "2", "10", "01"]) for _ in range(rng.choice((1, 2, 3, 3, 3, 4))))
        before = "-" + ".".join(rng.choice(["0", "1", "01", "a", "b-", "rc"]) for _ in range(rng.choice((1, 2))))
        return f'"{rng.choice(["", "", "", "v"])}{numbers}{rng.choice(["", before])}{rng.choice(["", "+b.01", "+"])}"'

    def domain(self) -> str:
        """A map of one domain."""
        field = self.rng.choice(["attributes", "attributes", "capacity"])
        key = self.rng.choice([f'"{GPU}"', f'"{GPU}"', f"'{NIC}'", "device.driver", '"other.example.com"'])
        return f"device.{field}[{key}]"

    def fact(self, name: str, section: str = "attributes") -> str:
        """A fact of the device, in one of the spellings."""
        key = self.rng.choice([f'"{GPU}"'] * 6 + [f'"{NIC}"', "device.driver", '"other.example.com"'])
        if name in ("rail", "lanes") and self.rng.random() < 0.8:
            key = f'"{NIC}"'
        return f"device.{section}[{key}]" + self.rng.choice([f".{name}"] * 4 + [f'["{name}"]'])

    def bool_(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice(["true", "false", self.fact("healthy"), "device.allowMultipleAllocations"])
        d = depth - 1
        of, rng = self.of, self.rng
        pair = rng.choice(["int", "text", "double", "bool", "list(int)", "list(text)", "uint", "dyn"])
        ordered = rng.choice(["int", "text", "double", "uint", "bool"])
        value = rng.choice(["quantity", "version"])
        element = rng.choice(["int", "text", "double", "bool", "uint", "dyn"])
        found = rng.choice(["quantity", "version", element])
        compare = rng.choice(["isGreaterThan", "isLessThan"])
        return self.any_of(
            lambda: f"({of('bool', d)} {rng.choice(['&&', '||'])} {of('bool', d)})",
            lambda: f"!{of('bool', d)}",
            lambda: f"({of(pair, d)} {rng.choice(['==', '!='])} {of(pair, d)})",
            lambda: f"({of(ordered, d)} {rng.choice(['<', '<=', '>', '>='])} {of(ordered, d)})",
            lambda: f"({of(rng.choice(['int', 'uint', 'double']), d)} < {of(rng.choice(['int', 'double']), d)})",
            lambda: f"({of(value, d)} {rng.choice(['==', '!='])} {of(value, d)})",
            lambda: f"{of(value, d)}.{compare}({of(value, d)})",
            lambda: f"{of('version', d)}.{compare}({of('version', d)})",
            lambda: f"({of('quantity', d)}.compareTo({of('quantity', d)}) {rng.choice(['==', '>=', '<'])} 0)",
            lambda: f"({of('version', d)}.compareTo({of('version', d)}) {rng.choice(['==', '>=', '<'])} 0)",
            lambda: f"({of(value, d)} in [{of(value, d)}, {of(value, d)}])",
            lambda: f"({of(found, d)} in {of(f'list({found})', d)})",
            lambda: f"({of('dyn', d)} {rng.choice(['==', '!='])} null)",
            lambda: f"({of('text', 0)} in {self.literal(d)})",
            lambda: f"({self.literal(d)} == {self.literal(d)})",
            lambda: f"has({self.literal(d)}.{rng.choice('ab')})",
            lambda: (
                f"{self.literal(d)}.{rng.choice(['all', 'exists', 'exists_one'])}(k, k.startsWith({of('text', 0)}))"
            ),
            lambda: f"({self.rng.choice(TEXTS)} in {self.domain()})",
            lambda: f"({rng.choice([repr(GPU), repr('x')])} in device.{rng.choice(['attributes', 'capacity'])})",
            lambda: f"has({self.domain()}.{rng.choice(['model', 'memory', 'rail', 'healthy', 'none'])})",
            lambda: f"{of('text', d)}.{rng.choice(['contains', 'startsWith', 'endsWith'])}({of('text', d)})",
            lambda: f"{of('text', d)}.matches({rng.choice(PATTERNS)})",
            lambda: f"bool({of('text', d)})",
            lambda: f"isQuantity({rng.choice([of('text', d), self.amount()])})",
            lambda: f"isSemver({rng.choice([of('text', d), self.version()])})",
            lambda: f"isSemver({self.version()}, {of('bool', d)})",
            lambda: f"{of('quantity', d)}.isInteger()",
            lambda: f"{of(f'list({element})', d)}.isSorted()",
            lambda: f"{of(f'list({found})', d)}.includes({of(found, d)})",
            lambda: f"{of('list(bool)', d)}.{rng.choice(['min', 'max'])}()",
            lambda: (
                f"sets.{rng.choice(['contains', 'equivalent', 'intersects'])}"
                f"({of(f'list({element})', d)}, {of(f'list({element})', d)})"
            ),
            lambda: f"{of(f'optional({element})', d)}.hasValue()",
            lambda: f"({of(f'optional({element})', d)} == {of(f'optional({element})', d)})",
            lambda: f"(type({of(pair, d)}) == {rng.choice(KINDS)})",
            lambda: self.loop("bool", d),
            lambda: self.loop("bool", d),
            lambda: self.bool_(0),
        )

    def loop(self, kind: str, depth: int) -> str:
        """A loop that is a bool, or a list of a type."""
        if self.loops >= 2:
            return self.of(kind, 0)
        element = self.rng.choice(["int", "text"])
        over = self.of(f"list({element})", depth)
        if kind == "bool" and self.rng.random() < 0.2:
            element, over = "text", self.rng.choice(["device.attributes", self.domain()])
        name = f"x{self.loops}{element[0]}"
        self.names.setdefault(element, []).append(name)
        self.loops += 1
        if kind == "bool":
            made = f"{over}.{self.rng.choice(['all', 'exists', 'exists_one'])}({name}, {self.of('bool', depth)})"
        else:
            made = self.any_of(
                lambda: f"{over}.map({name}, {self.of(kind, depth)})",
                lambda: f"{over}.map({name}, {self.of('bool', depth)}, {self.of(kind, depth)})",
            )
        self.names[element].pop()
        self.loops -= 1
        return made

    def filtered(self, element: str, depth: int) -> str:
        """A list without the items for which a condition is false."""
        if self.loops >= 2:
            return self.of(f"list({element})", 0)
        over, name = self.of(f"list({element})", depth), f"x{self.loops}{element[0]}"
        self.names.setdefault(element, []).append(name)
        self.loops += 1
        made = f"{over}.filter({name}, {self.of('bool', depth)})"
        self.names[element].pop()
        self.loops -= 1
        return made

    def literal(self, depth: int) -> str:
        """A literal of a map from texts to integers."""
        keys = self.rng.choice([['"a"'], ['"a"', '"b"'], ['"a"', self.rng.choice(TEXTS[2:])], []])
        return "{" + ", ".join(f"{key}: {self.of('int', depth)}" for key in keys) + "}"

    def int_(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice([*NUMBERS, self.fact("index"), self.fact("index"), self.fact("index")])
        d = depth - 1
        of, rng = self.of, self.rng
        element = rng.choice(["int", "text", "quantity", "dyn"])
        return self.any_of(
            lambda: self.int_(0),
            lambda: self.literal(d) + rng.choice([".a", ".b", '["a"]', f"[{of('text', 0)}]", ".size()"]),
            lambda: f"({of('int', d)} {rng.choice('+-*/%')} {of('int', d)})",
            lambda: f"-({of('int', d)})",
            lambda: f"int({of(rng.choice(['text', 'double', 'uint', 'int']), d)})",
            lambda: f"size({of(rng.choice(['text', 'list(int)']), d)})",
            lambda: f"{of('text', d)}.size()",
            lambda: f"{self.domain()}.size()",
            lambda: f"{of('text', d)}.{rng.choice(['indexOf', 'lastIndexOf'])}({of('text', d)})",
            lambda: f"{of('text', d)}.{rng.choice(['indexOf', 'lastIndexOf'])}({of('text', d)}, {of('int', 0)})",
            lambda: f"{of(f'list({element})', d)}.{rng.choice(['indexOf', 'lastIndexOf'])}({of(element, d)})",
            lambda: f"{of('list(int)', d)}.{rng.choice(['sum', 'min', 'max'])}()",
            lambda: f"{of('list(int)', d)}[{of('int', 0)}]",
            lambda: f"sign({of('quantity', d)})",
            lambda: f"{of('quantity', d)}.asInteger()",
            lambda: f"{of('quantity', d)}.compareTo({of('quantity', d)})",
            lambda: f"{of('version', d)}.compareTo({of('version', d)})",
            lambda: f"{of('version', d)}.{rng.choice(['major', 'minor', 'patch'])}()",
            lambda: f"{of('optional(int)', d)}.value()",
        )

    def uint_(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice(UNSIGNED)
        d = depth - 1
        return self.any_of(
            lambda: self.uint_(0),
            lambda: f"uint({self.of(self.rng.choice(['int', 'double', 'text']), d)})",
            lambda: f"({self.of('uint', d)} {self.rng.choice('+-*/%')} {self.of('uint', d)})",
            lambda: f"[{self.of('uint', d)}, {self.of('uint', d)}].{self.rng.choice(['sum', 'min', 'max'])}()",
        )

    def double_(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice(DOUBLES)
        d = depth - 1
        return self.any_of(
            lambda: self.double_(0),
            lambda: f"({self.of('double', d)} {self.rng.choice('+-*/')} {self.of('double', d)})",
            lambda: f"double({self.of(self.rng.choice(['int', 'text', 'uint']), d)})",
            lambda: f"{self.of('list(double)', d)}.{self.rng.choice(['sum', 'min', 'max'])}()",
            lambda: f"{self.of('quantity', d)}.asApproximateFloat()",
            lambda: f"quantity({self.amount()}).asApproximateFloat()",
        )

    def text_(self, depth: int) -> str:
        facts = [self.fact("model"), self.fact("model"), self.fact("rail"), "device.driver"]
        if depth <= 0:
            return self.rng.choice([*TEXTS, *facts, *facts])
        d = depth - 1
        of, rng = self.of, self.rng
        return self.any_of(
            lambda: self.text_(0),
            lambda: f"({of('text', d)} + {of('text', d)})",
            lambda: f"string({of(rng.choice(['int', 'bool', 'uint', 'text', 'double']), d)})",
            lambda: f"{of('text', d)}.{rng.choice(['lowerAscii', 'upperAscii', 'trim'])}()",
            lambda: f"{of('text', d)}.charAt({of('int', 0)})",
            lambda: f"{of('text', d)}.substring({of('int', 0)})",
            lambda: f"{of('text', d)}.substring({of('int', 0)}, {of('int', 0)})",
            lambda: f"{of('text', d)}.replace({of('text', 0)}, {of('text', 0)})",
            lambda: f"{of('text', d)}.replace({of('text', 0)}, {of('text', 0)}, {rng.choice(NUMBERS)})",
            lambda: f"{of('list(text)', d)}.join({rng.choice(['', of('text', 0)])})",
            lambda: f"{of('list(text)', d)}[{of('int', 0)}]",
            lambda: f"{of('list(text)', d)}.{rng.choice(['min', 'max'])}()",
            lambda: f"{of('optional(text)', d)}.value()",
        )

    def quantity_(self, depth: int) -> str:
        if depth <= 0:
            fact = self.fact(self.rng.choice(["memory", "share", "lanes"]), "capacity")
            return self.rng.choice([fact, fact, f"quantity({self.amount()})"])
        d = depth - 1
        return self.any_of(
            lambda: self.quantity_(0),
            lambda: self.quantity_(0),
            lambda: f"quantity({self.of('text', d)})",
            lambda: (
                f"{self.of('quantity', d)}.{self.rng.choice(['add', 'sub'])}"
                f"({self.of(self.rng.choice(['quantity', 'int']), d)})"
            ),
        )

    def version_(self, depth: int) -> str:
        if depth <= 0:
            fact = self.fact("firmware")
            return self.rng.choice([fact, fact, f"semver({self.version()})"])
        return self.any_of(
            lambda: self.version_(0),
            lambda: self.version_(0),
            lambda: f"semver({self.of('text', depth - 1)})",
            lambda: f"semver({self.version()}, {self.rng.choice(['true', 'false'])})",
        )

    def optional_(self, inner: str, depth: int) -> str:
        """An optional value of a type."""
        d = depth - 1
        of, rng = self.of, self.rng
        names = {"int": "index", "text": "model", "bool": "healthy", "version": "firmware"}
        choices: list[Callable[[], str]] = [
            lambda: f"optional.of({of(inner, d)})",
            lambda: "optional.none()",
        ]
        if inner == "int":
            choices.append(lambda: self.literal(0) + rng.choice([".?a", '[?"b"]']))
        if inner in ("int", "text", "bool"):
            choices.append(lambda: f"optional.ofNonZeroValue({of(inner, d)})")
        if inner in names:
            choices += [
                lambda: f"{self.domain()}.?{names[inner]}",
                lambda: f'{self.domain()}[?"{names[inner]}"]',
                lambda: f'device.attributes[?"{GPU}"].?{names[inner]}',
                lambda: f'device.?attributes["{GPU}"].{names[inner]}',
            ]
        if depth > 0:
            choices += [
                lambda: f"{of(f'list({inner})', d)}[?{of('int', 0)}]",
                lambda: f"{of(f'list({inner})', d)}.{rng.choice(['first', 'last'])}()",
                lambda: f"{of(f'optional({inner})', d)}.or({of(f'optional({inner})', d)})",
                lambda: f"{of(f'optional({inner})', d)}.optMap(o, {of(inner, d)})",
                lambda: f"{of(f'optional({inner})', d)}.optFlatMap(o, {of(f'optional({inner})', d)})",
            ]
        return rng.choice(choices)()

    def list_(self, inner: str, depth: int) -> str:
        """A list of a type."""
        of, rng = self.of, self.rng
        if depth <= 0:
            return "[" + ", ".join(of(inner, 0) for _ in range(rng.choice((0, 1, 1, 2, 3)))) + "]"
        d = depth - 1
        choices: list[Callable[[], str]] = [
            lambda: "[" + ", ".join(of(inner, d) for _ in range(rng.choice((1, 2, 3)))) + "]",
            lambda: f"({of(f'list({inner})', d)} + {of(f'list({inner})', d)})",
            lambda: f"{of(f'list({inner})', d)}.distinct()",
            lambda: f"{of(f'list({inner})', d)}.reverse()",
            lambda: f"{of(f'list({inner})', d)}.sort()",
            lambda: f"{of(f'list({inner})', d)}.slice({rng.choice('012')}, {rng.choice('0123')})",
            lambda: f"[{of(f'list({inner})', d)}, {of(f'list({inner})', d)}].flatten()",
            lambda: f"[[{of(f'list({inner})', d)}], []].flatten({rng.choice('23')})",
            lambda: self.loop(inner, d) if inner in ("int", "text", "double") else "[]",
            lambda: self.filtered(inner, d) if inner in ("int", "text") else "[]",
        ]
        if inner == "text":
            choices.append(lambda: f"{of('text', d)}.split({of('text', 0)})")
            choices.append(lambda: f"{of('text', d)}.split({of('text', 0)}, {rng.choice(NUMBERS)})")
        return rng.choice(choices)()

    def dyn_(self, depth: int) -> str:
        """A value whose type the checker does not know."""
        return self.any_of(
            lambda: self.fact(self.rng.choice(["model", "index", "healthy", "firmware", "rail"])),
            lambda: f"dyn({self.of(self.rng.choice(['int', 'text', 'double', 'bool']), depth - 1)})",
            lambda: "dyn(null)",
        )

    def map_(self, depth: int) -> str:
        return self.domain()
