"""Listening sockets, with an error that says what is in the way."""

import errno
import socket

from spillway.core.errors import SettingsError

BACKLOG = 2048


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of the host, all on one port; port 0 takes a free one."""
    sockets: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            taken = port_of(sockets) if sockets else port
            sockets += _listening(family, (address, taken))
        _check_some(sockets)
    except (OSError, OverflowError) as error:
        for made in sockets:
            made.close()
        raise SettingsError(
            f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
            hint="choose another --port or --host, or stop the process that holds it",
        ) from error
    return sockets


def _check_some(sockets: list[socket.socket]) -> None:
    if not sockets:
        raise OSError(errno.EADDRNOTAVAIL, "the host has no address here")


def port_of(sockets: list[socket.socket]) -> int:
    port: int = sockets[0].getsockname()[1]
    return port


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _listening(family: socket.AddressFamily, address: tuple[str, int]) -> list[socket.socket]:
    """One socket, or none where the machine has this family switched off."""
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return []
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        made.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
            return []
        raise
    made.setblocking(False)  # noqa: FBT003 (the standard library's signature)
    return [made]
