"""epoll cases; see cases.py."""

import os
import select
import socket
import threading

from common import HOST, name, pair, wait_for


def case_epoll():
    c, s = pair()
    ep = select.epoll()
    ep.register(s, select.EPOLLIN)
    yield ep.poll(0), name(ep.register, s, select.EPOLLIN)
    c.sendall(b"ab")
    yield [e for _, e in ep.poll(10)], [e for _, e in ep.poll(10)], s.recv(1), [e for _, e in ep.poll(10)], s.recv(1)
    yield ep.poll(0)
    ep.modify(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    yield [e for _, e in ep.poll(10)], ep.poll(0.01)
    c.sendall(b"cd")
    yield [e for _, e in ep.poll(10)], ep.poll(0.01)
    c.sendall(b"ef")
    yield [e for _, e in ep.poll(10)], s.recv(10, socket.MSG_PEEK)
    ep.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
    yield [e for _, e in ep.poll(10)], ep.poll(0.01)
    ep.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
    yield [e for _, e in ep.poll(10)], ep.poll(0.01)
    ep.modify(s, select.EPOLLRDHUP)
    yield ep.poll(0.01)
    c.close()
    yield [e for _, e in ep.poll(10)]
    ep.unregister(s)
    yield ep.poll(0), name(ep.unregister, s), name(ep.modify, s, 1)


def case_epoll_mixed():
    c, s = pair()
    r, w = os.pipe()
    ep, outer = select.epoll(), select.epoll()
    outer.register(ep, select.EPOLLIN)
    ep.register(r, select.EPOLLIN)
    ep.register(s, select.EPOLLIN)
    yield outer.poll(0), ep.poll(0)
    os.write(w, b"x")
    yield len(outer.poll(10)), [fd == r for fd, _ in ep.poll(10)]
    os.read(r, 1)
    yield ep.poll(0), outer.poll(0)
    c.sendall(b"y")
    yield len(outer.poll(10)), [fd == s.fileno() for fd, _ in ep.poll(10)]
    os.write(w, b"x")
    seen = set()
    while len(seen) < 2:
        seen.update(fd for fd, _ in ep.poll(10))
    yield sorted(fd == r for fd in seen)
    yield name(select.select, [ep], [], [], 0)[0] == [ep]
    s.recv(1)
    os.read(r, 1)
    yield ep.poll(0)
    d = socket.socket()
    d.setblocking(False)
    ep.register(d, select.EPOLLIN | select.EPOLLOUT)
    yield [e for _, e in ep.poll(10)]
    listener = socket.create_server((HOST, 0))
    name(d.connect, listener.getsockname())
    yield [e for _, e in ep.poll(10)]
    t, _ = listener.accept()
    ep.modify(d, select.EPOLLIN)
    t.sendall(b"z")
    yield [e for _, e in ep.poll(10)]
    d.close()
    s.close()
    yield ep.poll(0.01)


def case_epoll_threads():
    c, s = pair()
    ep = select.epoll()
    got = []

    def work():
        while True:
            for fd, _ in ep.poll():
                if fd == s.fileno():
                    data = s.recv(1)
                    got.append(data)
                    if data == b"q":
                        return
                    ep.modify(s, select.EPOLLIN | select.EPOLLONESHOT)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    ep.register(s, select.EPOLLIN | select.EPOLLONESHOT)
    for _ in range(200):
        c.sendall(b"m")
    c.sendall(b"qqq")
    while len(got) < 203:
        if sum(g == b"q" for g in got) and not wait_for(c, select.POLLOUT):
            break
        try:
            ep.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
        except OSError:
            break
    for t in threads:
        t.join()
    yield sorted(got).count(b"m"), sorted(got).count(b"q")
