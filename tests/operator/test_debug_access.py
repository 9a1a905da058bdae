# SPDX-License-Identifier: Apache-2.0
"""Who sees /debug with `debugAccess: token`."""

from typing import Any

from koordpy.engine.client.api_errors import Unreachable
from koordpy.operator.debug_access import TOKEN_REVIEWS, TokenGuard


class Reviews:
    """An API server that knows one token, whose user may get /debug/queue."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.down = False

    async def post(self, path: str, body: Any, *, type: Any) -> Any:
        self.asked.append(path)
        if self.down:
            raise Unreachable("no route")
        review = type()
        if path == TOKEN_REVIEWS:
            review.status.authenticated = body["spec"]["token"] == "good"
            review.status.user.username = "ops"
        else:
            spec = body["spec"]
            assert spec["nonResourceAttributes"]["verb"] == "get"
            review.status.allowed = (spec["user"], spec["nonResourceAttributes"]["path"]) == ("ops", "/debug/queue")
        return review


async def ask(guard: TokenGuard, path: str, header: str | None) -> str:
    request: Any = type("Request", (), {"path": path, "headers": {"Authorization": header} if header else {}})()
    return await guard(request)


async def test_a_token_lets_in_its_user_where_he_may_get_the_path() -> None:
    reviews = Reviews()
    guard = TokenGuard(reviews)  # type: ignore[arg-type]
    assert await ask(guard, "/debug/queue", "Bearer good") == ""
    assert await ask(guard, "/debug/snapshot", "Bearer good") == "ops may not get /debug/snapshot"
    assert await ask(guard, "/debug/queue", "Bearer bad") == "the token is not valid"
    for header in (None, "Basic good", "Bearer ", "good"):
        assert await ask(guard, "/debug/queue", header) == "needs a bearer token (debugAccess)"


async def test_who_asks_again_and_again_costs_the_api_server_nothing() -> None:
    reviews = Reviews()
    guard = TokenGuard(reviews)  # type: ignore[arg-type]
    for _ in range(100):
        await ask(guard, "/debug/queue", "Bearer bad")
    assert len(reviews.asked) == 1


async def test_nobody_is_let_in_while_the_api_server_does_not_say_and_that_is_not_kept() -> None:
    reviews = Reviews()
    reviews.down = True
    guard = TokenGuard(reviews)  # type: ignore[arg-type]
    assert "could not check the token" in await ask(guard, "/debug/queue", "Bearer good")
    reviews.down = False
    assert await ask(guard, "/debug/queue", "Bearer good") == ""
