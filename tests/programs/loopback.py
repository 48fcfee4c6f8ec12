"""127.0.0.1 and ::1 as the kernel has them: run on the kernel's TCP and on the engine, prints the same. `plain` names a
Python without the shim."""

import errno
import os
import socket
import subprocess
import sys

PLAIN = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TOE_SOCKET")}


def plain(code, **more):
    return subprocess.Popen([sys.executable, "-uc", "import socket\n" + code], env=PLAIN, stdout=subprocess.PIPE, **more)


def listener(host="127.0.0.1", port=0, family=socket.AF_INET, reuse=False):
    s = socket.socket(family)
    if reuse:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind((host, port))
    s.listen(64)
    return s


def expect(error, f, *args):
    try:
        f(*args)
    except OSError as e:
        assert e.errno == error, e
    else:
        raise AssertionError(f"no {errno.errorcode[error]}")


def exchange(bind, connect, family):
    l = listener(bind, 0, family)
    c = socket.socket(family)
    c.connect((connect, l.getsockname()[1]))
    # Connected means that it can be accepted at once.
    l.setblocking(False)
    a, peer = l.accept()
    a.setblocking(True)
    assert peer == c.getsockname() == a.getpeername(), (peer, c.getsockname())
    assert c.getpeername() == a.getsockname() and peer[1] not in (0, l.getsockname()[1])
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(connect, connect)
    assert c.getpeername()[0] == peer[0] == host
    c.sendall(b"x" * 300_000)
    c.shutdown(socket.SHUT_WR)
    n = 0
    while data := a.recv(65536):
        n += len(data)
    assert n == 300_000
    a.sendall(b"bye")
    a.close()
    assert c.recv(10) == b"bye" and c.recv(10) == b""


def addresses():
    v4, v6 = socket.AF_INET, socket.AF_INET6
    exchange("127.0.0.1", "127.0.0.1", v4)
    exchange("0.0.0.0", "127.0.0.1", v4)
    exchange("127.0.0.1", "0.0.0.0", v4)
    exchange("::1", "::1", v6)
    exchange("::", "::1", v6)
    exchange("::1", "::", v6)
    exchange("::", "::ffff:127.0.0.1", v6)


def plain_server():
    k = plain(
        "l = socket.create_server(('127.0.0.1', 0))\nprint(l.getsockname()[1])\n"
        "a, _ = l.accept()\na.sendall(a.recv(5))\nl.accept()",
    )
    at = ("127.0.0.1", int(k.stdout.readline()))
    c = socket.create_connection(at)
    c.sendall(b"hello")
    assert c.recv(5) == b"hello"
    expect(errno.EADDRINUSE, socket.socket().bind, at)
    k.kill()
    k.wait()


def plain_client():
    l = listener()
    at = l.getsockname()
    k = plain(
        f"try:\n socket.socket().bind({at})\nexcept OSError as e: print(e.errno)\n"
        f"c = socket.create_connection({at})\nc.sendall(b'plain')",
    )
    assert int(k.stdout.readline()) == errno.EADDRINUSE
    a, _ = l.accept()
    assert a.recv(10) == b"plain"
    k.wait()


def bound_source():
    l, c = listener(), socket.socket()
    c.bind(("127.0.0.1", 0))
    name = c.getsockname()
    c.connect(l.getsockname())
    assert c.getsockname() == name == l.accept()[1]


def in_use():
    l = listener()
    expect(errno.EADDRINUSE, listener, *l.getsockname())
    expect(errno.EADDRINUSE, listener, "0.0.0.0", l.getsockname()[1])
    r = socket.socket()
    r.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    expect(errno.EADDRINUSE, r.bind, l.getsockname())
    at = l.getsockname()
    l.close()
    for _ in range(50):
        listener(*at).close()


def untaken():
    l = listener()
    at = l.getsockname()
    c = socket.create_connection(at)
    l.close()
    expect(errno.ECONNRESET, c.recv, 1)
    expect(errno.ECONNREFUSED, socket.create_connection, at)


def reuseport():
    a = listener(reuse=True)
    b = listener(*a.getsockname(), reuse=True)
    clients = [socket.create_connection(a.getsockname()) for _ in range(40)]
    taken = []
    for l in (a, b):
        l.setblocking(False)
        n = 0
        try:
            while l.accept():
                n += 1
        except BlockingIOError:
            taken.append(n)
    assert sum(taken) == len(clients) and min(taken) > 0, taken


def fork():
    l = listener()
    at = l.getsockname()
    if (pid := os.fork()) == 0:
        l.accept()[0].sendall(b"child")
        os._exit(0)
    l.close()
    assert socket.create_connection(at).recv(10) == b"child"
    os.waitpid(pid, 0)
    expect(errno.ECONNREFUSED, socket.create_connection, at)


def nonblocking():
    l, c = listener(), socket.socket()
    l.setblocking(False)
    c.setblocking(False)
    assert c.connect_ex(l.getsockname()) == errno.EINPROGRESS
    c.send(b"at once")
    a, _ = l.accept()
    assert c.connect_ex(l.getsockname()) == 0
    assert c.connect_ex(l.getsockname()) == errno.EISCONN
    a.setblocking(True)
    assert a.recv(10) == b"at once"
    c = socket.socket()
    c.setblocking(False)
    at = l.getsockname()
    l.close()
    assert c.connect_ex(at) == errno.EINPROGRESS
    assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


for case in (addresses, nonblocking, plain_server, plain_client, bound_source, in_use, untaken, reuseport, fork):
    case()
    print("ok", case.__name__, flush=True)
