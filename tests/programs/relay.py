"""Connections that end up in programs without the shim, or in other processes by a message; the client sees nothing of it.

serve IP PORT PLAIN    serve one connection for each case; PLAIN copies standard input to standard output
connect IP PORT        be the other side
"""

import hashlib
import os
import select
import socket
import subprocess
import sys
import threading

BULK = 16 << 20
PLAIN = sys.argv[4] if len(sys.argv) > 4 else None

RECEIVER = """
import socket
u = socket.socket(fileno=0)
_, fds, _, _ = socket.recv_fds(u, 10, 4)
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fds[0])
got = s.recv(5, socket.MSG_WAITALL)
s.sendall(b"got " + got)
s.close()
"""


def plain(s, *args):
    return subprocess.Popen([PLAIN, *args], stdin=s, stdout=s)


def finish(child):
    assert child.wait() == 0


def exactly(s, n):
    got = b""
    while len(got) < n:
        more = s.recv(n - len(got))
        assert more, (got, n)
        got += more
    return got


def half_close_serve(s):
    child = plain(s)
    s.close()
    finish(child)


def half_close_connect(s):
    s.sendall(b"before ")
    s.sendall(b"after")
    s.shutdown(socket.SHUT_WR)
    assert s.makefile("rb").read() == b"before after"


bulk_serve = half_close_serve


def bulk_connect(s):
    block = os.urandom(1 << 20)

    def write():
        for _ in range(BULK // len(block)):
            s.sendall(block)
        s.shutdown(socket.SHUT_WR)

    writer = threading.Thread(target=write)
    writer.start()
    got, count = hashlib.sha1(), 0
    while more := s.recv(1 << 20):
        got.update(more)
        count += len(more)
    writer.join()
    assert count == BULK, count
    assert got.digest() == hashlib.sha1(block * (BULK // len(block))).digest()


def shared_serve(s):
    """The child answers one part, its parent the next."""
    finish(plain(s, "5"))
    s.sendall(b"parent")
    assert exactly(s, 3) == b"xyz"
    assert s.recv(1) == b""
    assert s.getsockname()[0] == sys.argv[2]
    s.close()


def shared_connect(s):
    s.sendall(b"12345")
    assert exactly(s, 11) == b"12345parent"
    s.sendall(b"xyz")
    s.shutdown(socket.SHUT_WR)
    assert s.recv(1) == b""


def unread_serve(s):
    """Closed with bytes unread: a reset."""
    assert s.recv(10, socket.MSG_PEEK | socket.MSG_WAITALL) == b"1234567890"
    child = plain(s, "5")
    s.close()
    finish(child)


def unread_connect(s):
    s.sendall(b"1234567890")
    assert exactly(s, 5) == b"12345"
    try:
        s.recv(1)
    except ConnectionResetError:
        return
    raise AssertionError("no reset")


def blocked_serve(s):
    """Threads wait for the socket in every way while a child is given it."""
    ep, po = select.epoll(), select.poll()
    ep.register(s, select.EPOLLIN)
    po.register(s, select.POLLIN)
    ways = {
        "epoll": lambda: [e for _, e in ep.poll(30)],
        "poll": lambda: [e for _, e in po.poll(30000)],
        "select": lambda: len(select.select([s], [], [], 30)[0]),
        "recv": lambda: s.recv(5, socket.MSG_PEEK),
    }
    got = {}
    threads = [threading.Thread(target=lambda n=n, w=w: got.update({n: w()})) for n, w in ways.items()]
    for t in threads:
        t.start()
    finish(subprocess.Popen([PLAIN], stdin=subprocess.DEVNULL, pass_fds=[s.fileno()]))
    s.sendall(b"now")
    for t in threads:
        t.join()
    assert got == {"epoll": [select.EPOLLIN], "poll": [select.POLLIN], "select": 1, "recv": b"hello"}, got
    assert s.recv(10) == b"hello"
    s.setblocking(False)
    try:
        s.recv(1)
        raise AssertionError("there was nothing")
    except BlockingIOError:
        pass
    ep.modify(s, select.EPOLLOUT)
    assert ep.poll(30) == [(s.fileno(), select.EPOLLOUT)]
    s.sendall(b"end")
    ep.modify(s, select.EPOLLIN)
    assert ep.poll(30) == [(s.fileno(), select.EPOLLIN)]
    assert s.recv(1) == b""
    s.close()


def blocked_connect(s):
    assert exactly(s, 3) == b"now"
    s.sendall(b"hello")
    assert exactly(s, 3) == b"end"


def send_to(env, s, close):
    ours, theirs = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-c", RECEIVER], stdin=theirs, env=env)
    theirs.close()
    socket.send_fds(ours, [b"x"], [s.fileno()])
    if close:
        s.close()
    finish(child)


def message_plain_serve(s):
    send_to({}, s, True)


def message_connect(s):
    s.sendall(b"hello")
    assert exactly(s, 9) == b"got hello"
    assert s.recv(1) == b""


message_plain_connect = message_connect


def message_shim_serve(s):
    send_to(os.environ, s, True)


message_shim_connect = message_connect


def message_kept_serve(s):
    """The sender goes on using it."""
    send_to({}, s, False)
    s.sendall(b"mine")
    s.close()


def message_kept_connect(s):
    s.sendall(b"hello")
    assert exactly(s, 13) == b"got hellomine"
    assert s.recv(1) == b""


def message_self_serve(s):
    a, b = socket.socketpair()
    socket.send_fds(a, [b"x"], [s.fileno()])
    _, fds, _, _ = socket.recv_fds(b, 10, 4)
    again = socket.socket(fileno=fds[0])
    assert again.getpeername() == s.getpeername()
    s.close()
    assert again.recv(5, socket.MSG_WAITALL) == b"hello"
    again.sendall(b"got hello")
    again.close()


message_self_connect = message_connect

CASES = [
    "half_close",
    "bulk",
    "shared",
    "unread",
    "blocked",
    "message_plain",
    "message_shim",
    "message_kept",
    "message_self",
]


def serve(ip, port):
    listener = socket.create_server((ip, port))
    print("listening", flush=True)
    for case in CASES:
        s, _ = listener.accept()
        s.settimeout(None)
        globals()[case + "_serve"](s)
    print("served", flush=True)


def connect(ip, port):
    for case in CASES:
        with socket.create_connection((ip, port)) as s:
            s.settimeout(60)
            globals()[case + "_connect"](s)
        print(case, flush=True)
    print("answered", len(CASES), flush=True)


{"serve": serve, "connect": connect}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
