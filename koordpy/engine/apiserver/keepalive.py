"""Sockets that notice when the other machine is gone: a watch may be silent for minutes and mean nothing by it."""

import socket
from typing import Any


def keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within half a minute that the other machine is gone, also while a watch is silent."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    return made
