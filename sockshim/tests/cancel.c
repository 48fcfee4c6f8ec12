/* pthread_cancel in blocked calls: prints what a program sees. Argument: the address to use. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct sockaddr_in where;
static int listener, client, server, pipe_in, pipe_out, ep, ep_pipe;
static volatile pid_t tid;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void pair(void) {
    socklen_t len = sizeof where;
    client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, (void *)&where, len)) exit(1);
    server = accept(listener, NULL, NULL);
}

static char buf[1 << 16];
static void do_read(void) { read(server, buf, 1); }
static void do_recv(void) { recv(server, buf, 10, MSG_WAITALL); }
static void do_readv(void) { struct iovec v = {buf, 3}; readv(server, &v, 1); }
static void do_recvmsg(void) { struct iovec v = {buf, 3}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1}; recvmsg(server, &m, 0); }
static void do_write(void) { for (;;) write(client, buf, sizeof buf); }
static void do_send(void) { for (;;) send(client, buf, sizeof buf, 0); }
static void do_accept(void) { accept(listener, NULL, NULL); }
static void do_poll(void) { struct pollfd p = {server, POLLIN, 0}; poll(&p, 1, -1); }
static void do_poll_both(void) { struct pollfd p[2] = {{server, POLLIN, 0}, {pipe_out, POLLIN, 0}}; poll(p, 2, 100000); }
static void do_select(void) { fd_set s; FD_ZERO(&s); FD_SET(server, &s); select(server + 1, &s, NULL, NULL, NULL); }
static void do_epoll(void) { struct epoll_event e; epoll_wait(ep, &e, 1, -1); }
static void do_pipe(void) { read(pipe_out, buf, 1); }
static void do_poll_pipe(void) { struct pollfd p = {pipe_out, POLLIN, 0}; poll(&p, 1, -1); }
static void do_epoll_pipe(void) { struct epoll_event e; epoll_wait(ep_pipe, &e, 1, -1); }
static void do_busy(void) { for (;;) { write(client, buf, 1); read(server, buf, 1); } }
static void do_stdio(void) { char line[10]; FILE *f = fdopen(dup(server), "r"); fgets(line, sizeof line, f); }

static const struct { const char *name; void (*run)(void); } cases[] = {
    {"read", do_read}, {"recv", do_recv}, {"readv", do_readv}, {"recvmsg", do_recvmsg}, {"write", do_write},
    {"send", do_send}, {"accept", do_accept}, {"poll", do_poll}, {"poll both", do_poll_both}, {"select", do_select},
    {"epoll", do_epoll}, {"pipe", do_pipe}, {"poll pipe", do_poll_pipe}, {"epoll pipe", do_epoll_pipe},
    {"busy", do_busy}, {"stdio", do_stdio},
};

static void cleanup(void *count) { ++*(int *)count; }
static int cleaned;

static void *body(void *run) {
    pthread_cleanup_push(cleanup, &cleaned);
    tid = gettid();
    ((void (*)(void))run)();
    pthread_cleanup_pop(0);
    return "returned";
}

/* Until the thread sleeps in the kernel. */
static void until_asleep(void) {
    char path[64], line[200], state = 0;
    while (!tid) sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    while (state != 'S') {
        sched_yield();
        int fd = open(path, O_RDONLY);
        ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
        close(fd);
        line[n > 0 ? n : 0] = 0;
        char *p = strrchr(line, ')');
        state = p ? p[2] : 'S';
    }
}

static void each(int asleep) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pthread_t t;
        void *result;
        pair();
        struct epoll_event ev = {EPOLLIN, {.fd = server}};
        epoll_ctl(ep, EPOLL_CTL_ADD, server, &ev);
        tid = 0;
        cleaned = 0;
        pthread_create(&t, NULL, body, cases[i].run);
        if (asleep && cases[i].run != do_busy) until_asleep();
        pthread_cancel(t);
        pthread_join(t, &result);
        printf("%s %d: %s", cases[i].name, asleep, result == PTHREAD_CANCELED ? "cancelled" : (char *)result);
        if (asleep && cases[i].run != do_busy) printf(" cleaned %d", cleaned);
        /* The socket is none the worse. */
        fcntl(server, F_SETFL, O_NONBLOCK);
        while (read(server, buf, sizeof buf) > 0) {}
        fcntl(server, F_SETFL, 0);
        write(server, "ok", 2);
        printf(" then %zd\n", recv(client, buf, 10, 0));
        epoll_ctl(ep, EPOLL_CTL_DEL, server, NULL);
        close(client);
        close(server);
    }
}

/* Cancelled while it may not be: the call goes on, and the next point after it may is the end. */
static void *guarded(void *arg) {
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    tid = gettid();
    *(ssize_t *)arg = recv(server, buf, 4, MSG_WAITALL);
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    recv(server, buf, 1, 0);
    return "returned";
}

static void disabled(void) {
    pthread_t t;
    void *result;
    ssize_t got = 0;
    pair();
    tid = 0;
    pthread_create(&t, NULL, guarded, &got);
    until_asleep();
    pthread_cancel(t);
    write(client, "12", 2);
    write(client, "34", 2);
    pthread_join(t, &result);
    printf("disabled: %s after %zd\n", result == PTHREAD_CANCELED ? "cancelled" : (char *)result, got);
}

/* Several in one epoll_wait: the right ones go. */
static void *waiter(void *arg) {
    struct epoll_event e;
    *(int *)arg = epoll_wait(ep, &e, 1, -1);
    return NULL;
}

static void many(void) {
    pthread_t t[4];
    int got[4] = {0};
    void *result;
    struct epoll_event ev = {EPOLLIN | EPOLLONESHOT, {.fd = server}};
    epoll_ctl(ep, EPOLL_CTL_ADD, server, &ev);
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, waiter, &got[i]);
    for (int i = 0; i < 4; i++) {
        if (i == 2) continue;
        pthread_cancel(t[i]);
        pthread_join(t[i], &result);
        printf("waiter %d: %d\n", i, result == PTHREAD_CANCELED);
    }
    write(client, "x", 1);
    pthread_join(t[2], &result);
    printf("waiter 2: %d %d\n", result == PTHREAD_CANCELED, got[2]);
}

int main(int argc, char **argv) {
    socklen_t len = sizeof where;
    int p[2];
    (void)argc;
    setvbuf(stdout, NULL, _IOLBF, 0);
    where.sin_family = AF_INET;
    inet_pton(AF_INET, argv[1], &where.sin_addr);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&where, len) || listen(listener, 5) || getsockname(listener, (void *)&where, &len)) return 1;
    if (pipe(p)) return 1;
    pipe_out = p[0];
    pipe_in = p[1];
    ep = epoll_create1(0);
    ep_pipe = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN, {.fd = pipe_out}};
    epoll_ctl(ep_pipe, EPOLL_CTL_ADD, pipe_out, &ev);
    each(1);
    each(0);
    disabled();
    many();
    return 0;
}
