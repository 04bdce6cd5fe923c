"""jsonrpcserver over our methods: from a decoded request to its response object.

jsonrpcserver finds the method, binds arguments, tells requests from notifications and builds
responses. Not used of it: its parser and its schema (both done before, within the limits of the
wire), and its batches, where one bad element fails them all and each costs a task.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from execprotocol.errors import RpcError
from execprotocol.methods import METHODS
from execserver.rpc import codec
from execserver.rpc.standard import Call, Dispatch, Response

if TYPE_CHECKING:
    from jsonrpcserver import Result

T = TypeVar("T")


class _EveryName(dict[str, T]):
    """A method for every name: of an unknown one the connection says so itself, in its own words."""

    def __init__(self, make: Callable[[str], T], known: Iterable[str]) -> None:
        super().__init__({name: make(name) for name in known})
        self._make = make

    def __missing__(self, name: str) -> T:
        return self._make(name)


@cache
def load_dispatch() -> Dispatch:
    """Load jsonrpcserver, with a JSON Schema library of its own: 50 ms, and 4 MiB.

    Returns:
        The response object for a request whose envelope is right; None for a notification.

    Raises:
        ImportError, OSError: it cannot be loaded.
    """
    with warnings.catch_warnings():
        # It reads its schema in a way that Python 3.11 deprecates.
        warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
        from jsonrpcserver import Error, Success
        from jsonrpcserver.async_dispatcher import dispatch_request
        from jsonrpcserver.dispatcher import create_request, not_notification, to_response
        from jsonrpcserver.response import to_serializable

    def method(name: str) -> Callable[..., Any]:
        async def call(context: Call, /, *args: Any, **kwargs: Any) -> Result:
            try:
                return Success(await context.perform(name, list(args) if args else kwargs))
            except RpcError as error:
                data = codec.printable_members(error.data())
                return Error(error.code, codec.printable(error.message), data)

        return call

    methods = _EveryName(method, METHODS)

    async def dispatch(message: Mapping[str, Any], call: Call) -> Response | None:
        request = create_request(
            {name: value for name, value in message.items() if value is not None or name == "id"}
        )
        outcome = await dispatch_request(methods, call, request)
        return cast("Response", to_serializable(to_response(*outcome))) if not_notification(outcome) else None

    return dispatch
