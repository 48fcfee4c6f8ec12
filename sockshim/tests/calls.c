/* Calls by number, splice and sendfile, closing in bulk: prints what a program sees. Argument: the address to use. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"

/* A result, or the errno as a negative number. */
#define R(call) ({ long r_ = (long)(call); r_ < 0 ? -errno : r_; })

static void unpair(void) {
    close(client);
    close(server);
}

static void by_number(void) {
    char buf[100] = {0};
    socklen_t len = sizeof where;
    int one = 1, value = 0;
    long l = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    where.sin_port = 0;
    printf("bind %ld", R(syscall(SYS_bind, l, &where, len)));
    printf(" listen %ld", R(syscall(SYS_listen, l, 5)));
    printf(" name %ld\n", R(syscall(SYS_getsockname, l, &where, &len)));
    long c = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    printf("connect %ld", R(syscall(SYS_connect, c, &where, len)));
    struct sockaddr_in peer;
    len = sizeof peer;
    long s = syscall(SYS_accept4, l, &peer, &len, SOCK_CLOEXEC);
    printf(" accept %d family %d", s > 0, peer.sin_family);
    printf(" peer %ld\n", R(syscall(SYS_getpeername, s, &peer, &len)));
    printf("set %ld", R(syscall(SYS_setsockopt, c, IPPROTO_TCP, 1, &one, 4)));
    len = sizeof value;
    printf(" get %ld", R(syscall(SYS_getsockopt, c, IPPROTO_TCP, 1, &value, &len)));
    printf(" %d\n", value);
    printf("sendto %ld", R(syscall(SYS_sendto, c, "abcdef", 6, 0, NULL, 0)));
    printf(" recvfrom %ld", R(syscall(SYS_recvfrom, s, buf, 3, MSG_WAITALL, NULL, NULL)));
    printf(" read %ld", R(syscall(SYS_read, s, buf + 3, 50)));
    printf(" %s\n", buf);
    struct iovec iov[2] = {{"one", 3}, {"two", 3}}, in[2] = {{buf, 2}, {buf + 10, 20}};
    printf("writev %ld", R(syscall(SYS_writev, s, iov, 2)));
    struct pollfd p = {c, POLLIN, 0};
    struct timespec time = {10, 0};
    printf(" ppoll %ld", R(syscall(SYS_ppoll, &p, 1, &time, NULL, 8)));
    printf(" %d", p.revents);
    printf(" readv %ld", R(syscall(SYS_readv, c, in, 2)));
    printf(" %.2s %.4s\n", buf, buf + 10);
    p.fd = s;
    printf("ppoll %ld", R(syscall(SYS_ppoll, &p, 1, &(struct timespec){0, 1000}, NULL, 8)));
    printf(" mask %ld\n", R(syscall(SYS_ppoll, &p, 1, &time, &p, 3)));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(c, &set);
    time = (struct timespec){0, 1000};
    printf("pselect6 %ld\n", R(syscall(SYS_pselect6, c + 1, &set, NULL, NULL, &time, NULL)));
    long ep = syscall(SYS_epoll_create1, 0);
    struct epoll_event ev = {EPOLLIN, {.u64 = 5}};
    printf("epoll_ctl %ld", R(syscall(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, s, &ev)));
    printf(" write %ld", R(syscall(SYS_write, c, "x", 1)));
    ev.data.u64 = 0;
    printf(" wait %ld", R(syscall(SYS_epoll_pwait, ep, &ev, 1, 10000, NULL, 8)));
    printf(" %d\n", (int)ev.data.u64);
    printf("mask %ld\n", R(syscall(SYS_epoll_pwait, ep, &ev, 1, 0, &set, 4)));
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = in, .msg_iovlen = 2}}, {.msg_hdr = {.msg_iov = iov, .msg_iovlen = 1}}};
    printf("recvmmsg %ld", R(syscall(SYS_recvmmsg, s, m, 1, 0, NULL)));
    printf(" %u", m[0].msg_len);
    m[0] = m[1];
    printf(" sendmmsg %ld", R(syscall(SYS_sendmmsg, c, m, 2, 0)));
    printf(" %u %u\n", m[0].msg_len, m[1].msg_len);
    long d = syscall(SYS_dup, s), e = syscall(SYS_dup3, s, 400, 0), f = syscall(SYS_fcntl, s, F_DUPFD_CLOEXEC, 500);
    printf("dup %d %ld %ld", d > 0, e, f);
    printf(" close %ld %ld", R(syscall(SYS_close, s)), R(syscall(SYS_close, d)));
    int bytes = 0;
    struct pollfd q = {e, POLLIN, 0};
    poll(&q, 1, 10000);
    printf(" ioctl %ld", R(syscall(SYS_ioctl, e, FIONREAD, &bytes)));
    printf(" %d", bytes > 0);
    printf(" range %ld", R(syscall(SYS_close_range, 390, 510, 0)));
    printf(" %ld\n", R(syscall(SYS_read, e, buf, 1)));
    printf("rst %ld\n", R(syscall(SYS_recvfrom, c, buf, 10, 0, NULL, NULL)));
    printf("pid %d gettid %d bad %ld\n", syscall(SYS_getpid) == getpid(), syscall(SYS_gettid) == gettid(), R(syscall(9999)));
    syscall(SYS_close, c);
    syscall(SYS_close, l);
    syscall(SYS_close, ep);
}

static void positions(void) {
    char buf[10];
    struct iovec iov = {buf, 4};
    pair();
    printf("pread %ld", R(pread(server, buf, 1, 0)));
    printf(" pwrite %ld", R(pwrite(server, buf, 1, 0)));
    printf(" preadv %ld pwritev %ld", R(preadv(server, &iov, 1, 0)), R(pwritev(server, &iov, 1, 0)));
    printf(" preadv2 %ld lseek %ld\n", R(preadv2(server, &iov, 1, 0, 0)), R(lseek(server, 0, SEEK_SET)));
    printf("pwritev2 %ld", R(pwritev2(client, &iov, 1, -1, 0)));
    printf(" preadv2 %ld", R(preadv2(server, &iov, 1, -1, 0)));
    printf(" nowait %ld", R(preadv2(server, &iov, 1, -1, 8)));
    printf(" unknown %ld\n", R(preadv2(server, &iov, 1, -1, 0x4000)));
    struct stat st;
    struct statx stx;
    printf("fstat %d", fstat(server, &st) == 0 && S_ISSOCK(st.st_mode));
    printf(" statx %d", statx(server, "", AT_EMPTY_PATH, STATX_TYPE, &stx) == 0 && S_ISSOCK(stx.stx_mode));
    printf(" isfdtype %d %d mark %d\n", isfdtype(server, S_IFSOCK), isfdtype(0, S_IFSOCK), sockatmark(server));
    unpair();
}

static void splices(void) {
    static char big[200000], back[200000];
    int p[2];
    for (unsigned i = 0; i < sizeof big; i++) big[i] = i * 7 + i / 255;
    pair();
    if (pipe(p)) exit(1);
    fcntl(server, F_SETFL, O_NONBLOCK);
    printf("empty %ld", R(splice(server, NULL, p[1], NULL, 100, 0)));
    printf(" empty pipe %ld", R(splice(p[0], NULL, client, NULL, 100, SPLICE_F_NONBLOCK)));
    loff_t zero = 0;
    printf(" offsets %ld %ld", R(splice(server, &zero, p[1], NULL, 1, 0)), R(splice(server, NULL, p[1], &zero, 1, 0)));
    printf(" no pipe %ld flags %ld", R(splice(server, NULL, client, NULL, 1, 0)), R(splice(server, NULL, p[1], NULL, 1, 64)));
    printf(" nothing %ld\n", R(splice(server, NULL, p[1], NULL, 0, 0)));
    fcntl(server, F_SETFL, 0);
    /* There and back: a pipe into the socket, the socket into a pipe. */
    pid_t pid = fork();
    if (pid == 0) {
        size_t out = 0;
        while (out < sizeof big) {
            size_t n = sizeof big - out < 50000 ? sizeof big - out : 50000;
            if (write(p[1], big + out, n) != (ssize_t)n) _exit(1);
            size_t end = out + n;
            while (out < end) {
                ssize_t k = splice(p[0], NULL, client, NULL, end - out, out + 1 < sizeof big ? SPLICE_F_MORE : 0);
                if (k <= 0) _exit(2);
                out += k;
            }
        }
        shutdown(client, SHUT_WR);
        _exit(0);
    }
    int q[2];
    size_t got = 0;
    ssize_t n;
    if (pipe(q)) exit(1);
    while ((n = splice(server, NULL, q[1], NULL, sizeof back, SPLICE_F_MOVE)) > 0)
        for (ssize_t done = 0, k; done < n; done += k, got += k)
            if ((k = read(q[0], back + got, n - done)) <= 0) exit(1);
    int status;
    waitpid(pid, &status, 0);
    printf("through pipes %ld %zu %d %d\n", (long)n, got, memcmp(big, back, sizeof big) == 0, status);
    /* A pipe that is full takes nothing, and nothing is lost. */
    fcntl(q[1], F_SETFL, O_NONBLOCK);
    while (write(q[1], big, 4096) > 0) {}
    fcntl(q[1], F_SETFL, 0);
    pair();
    write(client, "kept", 4);
    printf("full pipe %ld", R(splice(server, NULL, q[1], NULL, 4, SPLICE_F_NONBLOCK)));
    printf(" still there %ld\n", R(recv(server, back, 10, 0)));
    signal(SIGPIPE, SIG_IGN);
    close(q[0]);
    write(client, "x", 1);
    printf("no reader %ld", R(splice(server, NULL, q[1], NULL, 1, 0)));
    close(p[1]);
    printf(" no writer %ld", R(splice(p[0], NULL, client, NULL, 1, 0)));
    printf(" tee %ld copy %ld\n", R(tee(p[0], client, 1, 0)), R(copy_file_range(p[0], NULL, client, NULL, 1, 0)));
    close(p[0]);
    close(q[1]);
    unpair();
}

static void sendfiles(void) {
    char name[] = "/tmp/toe-calls-XXXXXX", buf[100];
    int f = mkstemp(name), p[2];
    unlink(name);
    write(f, "0123456789", 10);
    pair();
    off_t at = 2;
    printf("sendfile %ld", R(sendfile(client, f, &at, 3)));
    printf(" at %ld file %ld", (long)at, (long)lseek(f, 0, SEEK_CUR));
    lseek(f, 7, SEEK_SET);
    printf(" rest %ld", R(sendfile(client, f, NULL, 100)));
    printf(" file %ld", (long)lseek(f, 0, SEEK_CUR));
    printf(" end %ld", R(sendfile(client, f, NULL, 100)));
    at = 10;
    printf(" past %ld", R(sendfile(client, f, &at, 1)));
    printf(" %ld", (long)at);
    at = -1;
    printf(" negative %ld", R(sendfile(client, f, &at, 1)));
    printf(" bad %ld socket %ld\n", R(sendfile(client, -1, NULL, 1)), R(sendfile(client, server, NULL, 1)));
    printf("got %ld", R(recv(server, buf, 6, MSG_WAITALL)));
    printf(" %.6s\n", buf);
    if (pipe(p)) exit(1);
    write(p[1], "x", 1);
    printf("from a pipe %ld\n", R(sendfile(client, p[0], NULL, 1)));
    close(p[0]);
    close(p[1]);
    close(f);
    unpair();
}

/* A program that wants every number, and one that closes all: the engine must go on working for what comes after. */
static void numbers(void) {
    pair();
    int failed = 0;
    long top = sysconf(_SC_OPEN_MAX) < 20000 ? sysconf(_SC_OPEN_MAX) : 20000;
    for (int fd = 1000; fd < top; fd++) failed += dup2(client, fd) != fd;
    printf("dup2 everywhere: %d failed\n", failed);
    write(client, "works", 5);
    char buf[10];
    printf("still %ld", R(recv(server, buf, 10, 0)));
    int c = client, s = server;
    pair();
    printf(" and new ones %ld", R(write(client, "new", 3)));
    printf(" %ld\n", R(recv(server, buf, 10, 0)));
    unpair();
    close(c);
    for (int fd = 1000; fd < top; fd++) failed += close(fd) != 0;
    printf("closed: %d failed, eof %ld\n", failed, R(recv(s, buf, 10, 0)));
    pair();
    closefrom(3);
    printf("closefrom %ld\n", R(read(server, buf, 1)));
    pair();
    printf("range %d", close_range(3, UINT_MAX, 0));
    printf(" %ld", R(read(server, buf, 1)));
    pair();
    for (int fd = 3; fd < top; fd++) close(fd);
    printf(" loop %ld", R(read(server, buf, 1)));
    pair();
    write(client, "after", 5);
    printf(" %ld\n", R(recv(server, buf, 10, 0)));
    unpair();
}

int main(int argc, char **argv) {
    (void)argc;
    where.sin_family = AF_INET;
    inet_pton(AF_INET, argv[1], &where.sin_addr);
    by_number();
    positions();
    splices();
    sendfiles();
    numbers();
    return 0;
}
