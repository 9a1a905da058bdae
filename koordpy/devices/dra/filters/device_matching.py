# SPDX-License-Identifier: Apache-2.0
"""The devices that suit a request by class, selectors and taints. Each combination is evaluated once per slice version.

If a selector does not compile or fails on a device, the answer is a text. The search decides if the error counts
(`device_search.py`). Source: docs/rules/dra.md 2 and 3.
"""

from koordpy.devices.dra.cel import (
    DeviceFacts,
    SelectorError,
    SelectorRuntimeError,
    UnsupportedSelector,
    compile_selector,
)
from koordpy.devices.dra.filters.claim_requests import Alternative, SelectorText
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers, OfferedDevice, tainted

Match = bool | str
"""True, False, or the text of an error. A text that starts with `:` is about the claim's own selector; the claim's name
precedes it in messages."""


def unsupported_selector(alternative: Alternative) -> str:
    """Returns the first feature of a request's selectors that is not served; empty for none."""
    for one in alternative.selectors:
        try:
            compile_selector(one.text)
        except UnsupportedSelector as what:
            return str(what)
        except SelectorError:
            continue
    return ""


def _evaluate(selector: SelectorText, device: OfferedDevice, facts: DeviceFacts) -> Match:
    """Returns the answer of one selector."""
    what = f"{selector.origin}: selector #{selector.number}"
    try:
        return compile_selector(selector.text).matches(facts)
    except SelectorError as fault:
        return f"{what}: CEL compile error: {fault}"
    except SelectorRuntimeError as fault:
        return f"{what} on device {'/'.join(device.id)}: CEL runtime error: {fault}"


class DeviceMatching:
    """The answers of selectors, cached with the offers that they are about."""

    def __init__(self, offers: DeviceOffers) -> None:
        self._known: dict[tuple[SelectorText, ...], dict[OfferedDevice, Match]]
        self._known = offers.memo.setdefault(DeviceMatching, {})
        self._facts: dict[OfferedDevice, DeviceFacts] = offers.memo.setdefault(DeviceFacts, {})

    def selects(self, alternative: Alternative, device: OfferedDevice) -> Match:
        """Returns whether class and request select a device; the text of an error if a selector fails."""
        known = self._known.get(alternative.selectors)
        if known is None:
            known = self._known[alternative.selectors] = {}
        found = known.get(device)
        if found is None:
            found = known[device] = self._of(alternative.selectors, device)
        return found

    def _of(self, selectors: tuple[SelectorText, ...], device: OfferedDevice) -> Match:
        facts = self._facts.get(device)
        if facts is None:
            own = device.facts
            facts = self._facts[device] = DeviceFacts(device.id.driver, own.attributes, own.capacity, device.multi)
        for one in selectors:
            answer = _evaluate(one, device, facts)
            if answer is not True:
                return answer
        return True

    def suits(self, alternative: Alternative, device: OfferedDevice) -> Match:
        """Returns `selects`, or False for a device with a taint that the request does not tolerate."""
        answer = self.selects(alternative, device)
        if answer is True and device.taints and tainted(device, alternative.tolerations):
            return False
        return answer
