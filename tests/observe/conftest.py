# SPDX-License-Identifier: Apache-2.0
"""What is served here is tried on both event loops."""

from tests.loops import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
