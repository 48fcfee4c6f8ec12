/* Signals and blocked calls, as a C program sees them. Run on kernel sockets and under the shim; the output must be the same.
 * Links nothing of this project. Argument: the address to use. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int ticks, feeder = -1;
static struct sockaddr_in where;

/* Nobody feeds a call that must be interrupted; one that must be restarted is ended by the third tick. */
static void tick(int sig) {
    int saved = errno;
    (void)sig;
    if (++ticks == 3 && feeder >= 0) {
        if (write(feeder, "x", 1) != 1)
            _exit(9);
    }
    if (ticks == 3 && feeder == -2) {
        int c = socket(AF_INET, SOCK_STREAM, 0);
        connect(c, (struct sockaddr *)&where, sizeof where);
    }
    errno = saved;
}

static void start(int flags) {
    struct sigaction sa = {.sa_handler = tick, .sa_flags = flags};
    struct itimerval every = {{0, 20000}, {0, 20000}};
    sigaction(SIGALRM, &sa, NULL);
    ticks = 0;
    setitimer(ITIMER_REAL, &every, NULL);
}

static void stop(const char *what, int flags, long result) {
    int e = errno;
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%s %s: %s\n", what, flags ? "restart" : "interrupt", result < 0 ? strerror(e) : "done");
    fflush(stdout);
}

static int listener(const char *host) {
    socklen_t len = sizeof where;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET};
    inet_pton(AF_INET, host, &a.sin_addr);
    if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 8) || getsockname(l, (struct sockaddr *)&where, &len))
        _exit(8);
    return l;
}

static void make_pair(const char *host, int *c, int *s) {
    int l = listener(host);
    *c = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(*c, (struct sockaddr *)&where, sizeof where))
        _exit(7);
    *s = accept(l, NULL, NULL);
    close(l);
}

int main(int argc, char **argv) {
    const char *host = argc > 1 ? argv[1] : "127.0.0.1";
    char buf[8];
    int c, s;
    for (int round = 0; round < 2; round++) {
        int flags = round ? SA_RESTART : 0;
        make_pair(host, &c, &s);
        feeder = round ? c : -1;
        start(flags);
        stop("recv", flags, recv(s, buf, 1, 0));
        feeder = -1;
        start(flags);
        struct pollfd p = {s, POLLIN, 0};
        stop("poll", flags, poll(&p, 1, -1));
        int ep = epoll_create1(0);
        struct epoll_event ev = {.events = EPOLLIN};
        epoll_ctl(ep, EPOLL_CTL_ADD, s, &ev);
        start(flags);
        stop("epoll", flags, epoll_wait(ep, &ev, 1, -1));
        fd_set set;
        FD_ZERO(&set);
        FD_SET(s, &set);
        start(flags);
        stop("select", flags, select(s + 1, &set, NULL, NULL, NULL));
        struct timeval tv = {5, 0};
        setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
        start(flags);
        stop("timed recv", flags, recv(s, buf, 1, 0));
        close(c);
        close(s);
        int l = listener(host);
        feeder = round ? -2 : -1;
        start(flags);
        stop("accept", flags, accept(l, NULL, NULL));
        close(l);
        l = listener("0.0.0.0");
        inet_pton(AF_INET, host, &where.sin_addr);
        start(flags);
        stop("wildcard accept", flags, accept(l, NULL, NULL));
        close(l);
    }
    /* A child that libc does not know of, and stdio's close. */
    make_pair(host, &c, &s);
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        close(c);
        send(s, "child", 5, 0);
        _exit(0);
    }
    waitpid((int)pid, NULL, 0);
    memset(buf, 0, sizeof buf);
    printf("clone: %ld %s\n", (long)recv(c, buf, 5, MSG_WAITALL), buf);
    send(s, "parent", 6, 0);
    memset(buf, 0, sizeof buf);
    printf("after: %ld %s\n", (long)recv(c, buf, 6, MSG_WAITALL), buf);
    FILE *f = fdopen(s, "r");
    fclose(f);
    printf("fclose: %ld\n", (long)recv(c, buf, 1, 0));
    pid = vfork();
    if (pid == 0) {
        close(c);
        _exit(0);
    }
    waitpid((int)pid, NULL, 0);
    printf("vfork: %ld\n", (long)recv(c, buf, 1, 0));
    return 0;
}
