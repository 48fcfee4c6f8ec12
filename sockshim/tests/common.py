"""What the cases share."""

import errno
import select
import socket
import sys

HOST = sys.argv[1]


def name(call, *args):
    """Result of a call, or the name of its errno."""
    try:
        return call(*args)
    except OSError as e:
        return errno.errorcode.get(e.errno, type(e).__name__)


def pair():
    with socket.create_server((HOST, 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, peer = listener.accept()
        assert peer == client.getsockname()
    return client, server


def wait_for(sock, events):
    p = select.poll()
    p.register(sock, events)
    return p.poll(10000)


def levels(sock):
    p = select.poll()
    p.register(sock, select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI)
    return [e for _, e in p.poll(0)]
