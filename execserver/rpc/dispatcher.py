"""jsonrpcserver over our methods: from a decoded request to its response object.

Imported by the first connection that speaks standard JSON-RPC, and in a thread: it brings a JSON
Schema library of its own, which takes 50 ms to load.

jsonrpcserver finds the method, binds arguments, tells requests from notifications and builds
responses. Not used of it: its parser and its schema (both done before, within the limits of the
wire), and its batches, where one bad element fails them all and each costs a task.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from execserver.protocol.errors import RpcError
from execserver.protocol.methods import METHODS
from execserver.rpc import envelope
from execserver.rpc.standard import Call, Response

with warnings.catch_warnings():
    # It reads its schema in a way that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from jsonrpcserver import Error, Result, Success
    from jsonrpcserver.async_dispatcher import dispatch_request
    from jsonrpcserver.dispatcher import create_request, not_notification, to_response
    from jsonrpcserver.response import to_serializable

Method = Callable[..., Awaitable[Result]]


class Methods(dict[str, Method]):
    """Every name is a method: of an unknown one the connection says so itself, in its own words."""

    def __missing__(self, name: str) -> Method:
        return _method(name)


def _method(name: str) -> Method:
    async def call(context: Call, /, *args: Any, **kwargs: Any) -> Result:
        try:
            return Success(await context.perform(name, list(args) if args else kwargs))
        except RpcError as error:
            data = envelope.printable_members(error.data())
            return Error(error.code, envelope.printable(error.message), data)

    return call


_METHODS = Methods({name: _method(name) for name in METHODS})


async def dispatch(message: Mapping[str, Any], call: Call) -> Response | None:
    """The response object for a request whose envelope is right; None for a notification."""
    request = create_request(
        {name: value for name, value in message.items() if value is not None or name == "id"}
    )
    outcome = await dispatch_request(_METHODS, call, request)
    return cast("Response", to_serializable(to_response(*outcome))) if not_notification(outcome) else None
