# SPDX-License-Identifier: Apache-2.0
"""Times of device selectors (docs/benchmarks.md): python -m bench.device_selectors"""

import time
from collections.abc import Callable

from koordpy.devices.dra.cel import DeviceFacts, Selector, compile_selector
from tests.devices.dra.cel_differential import corpus, facts_of

ROUNDS, CALLS = 7, 1000
SELECTORS = {
    "a driver and a text": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
    "a quantity": "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
    "a version": "device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('550.0.0'))",
    "a regular expression": "device.attributes['gpu.nvidia.com'].productName.matches('A100')",
    "a computed quantity": "device.capacity['gpu.nvidia.com'].memory.add(1).isInteger()",
}


def best(call: Callable[[int], object], calls: int = CALLS) -> float:
    """CPU time of one call in microseconds: the best of some rounds. call: gets the number of the call."""
    found = []
    for round_ in range(ROUNDS):
        start = time.process_time()
        for at in range(calls):
            call(round_ * calls + at)
        found.append((time.process_time() - start) / calls)
    return min(found) * 1e6


def main() -> None:
    start = time.process_time()
    compile_selector("true")
    print(f"{'the first selector, with all imports':40} {(time.process_time() - start) * 1e3:8.0f} ms")
    compiled = best(lambda at: compile_selector(f"device.driver == '{at}'"), 50)
    print(f"{'compile a selector':40} {compiled:8.0f} us")
    device = corpus()[0][0]
    known = facts_of(device)

    def fresh() -> DeviceFacts:
        return DeviceFacts(known._driver, known._attributes, known._capacity)

    plain = compile_selector("has(device.driver)")
    prepared = best(lambda _: plain.matches(fresh()))
    print(f"{'prepare a device, with a first selector':40} {prepared:8.1f} us")
    for name, text in SELECTORS.items():
        selector = compile_selector(text)

        def both(_: int, selector: Selector = selector) -> bool:
            facts = fresh()
            return plain.matches(facts) and selector.matches(facts)

        print(f"{name:40} {best(both) - prepared:8.1f} us")


if __name__ == "__main__":
    main()
