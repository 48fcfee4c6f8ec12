/* stdio on sockets: prints what a program sees. Argument: the address to use. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"

static void two_streams(void) {
    char line[100], *grown = NULL;
    size_t size = 0;
    pair();
    FILE *in = fdopen(server, "r"), *out = fdopen(dup(server), "w"), *peer = fdopen(client, "r+");
    printf("fileno %d %d\n", fileno(in) == server, fileno_unlocked(peer) == client);
    fprintf(peer, "USER %s %d\r\n", "anonymous", 42);
    fputs("line two\nthree", peer);
    printf("flush %d\n", fflush(peer));
    printf("got %s", fgets(line, sizeof line, in));
    ssize_t n = getline(&grown, &size, in);
    printf("getline %zd %s", n, grown);
    fwrite("0123456789", 1, 10, out);
    putc('x', out);
    printf("close %d\n", fclose(out));
    printf("fread %zu\n", fread(line, 1, 11, peer));
    int seek = fseek(peer, 0, SEEK_CUR);
    printf("seek %d %d\n", seek, errno == ESPIPE);
    printf("scanf %d\n", fscanf(in, "%5s", line));
    printf("text %s\n", line);
    shutdown(client, SHUT_WR);
    int end = fgetc(in);
    printf("eof %d %d %d\n", end, feof(in) != 0, ferror(in));
    end = fclose(in);
    printf("closes %d %d\n", end, fclose(peer));
    printf("closed %d %d\n", close(server), close(client));
    free(grown);
}

static void bad_modes(void) {
    pair();
    printf("mode %d", fdopen(client, "q") == NULL);
    printf(" %d\n", errno == EINVAL);
    FILE *f = fdopen(client, "r");
    printf("write to a reader %d", fputs("x", f));
    printf(" %d\n", errno == EBADF);
    fclose(f);
    close(server);
}

static int by_list(int fd, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vdprintf(fd, format, args);
    va_end(args);
    return n;
}

static void formatted(void) {
    char line[300];
    pair();
    printf("dprintf %d\n", dprintf(client, "%d %s %.2f %d %d %d %g %lld|", 1, "two", 3.25, 4, 5, 6, 7.5, 8LL));
    printf("vdprintf %d\n", by_list(client, "%s %c %f %d %d %d|", "list", 'c', 1.0, 2, 3, 4));
    printf("no arguments %d\n", dprintf(client, "plain|"));
    shutdown(client, SHUT_WR);
    FILE *in = fdopen(server, "r");
    printf("%s\n", fgets(line, sizeof line, in));
    printf("to a closed one %d\n", dprintf(-1, "x%d", 1));
    fclose(in);
    close(client);
}

/* As inetd does for its children. */
static void standard_streams(void) {
    char line[200];
    pair();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        close(client);
        printf("before ");
        dup2(server, 0);
        dup2(server, 1);
        dup2(server, 2);
        close(server);
        printf("hello %d\n", fileno(stdout));
        if (fgets(line, sizeof line, stdin)) printf("echo %s", line);
        char word[20];
        if (scanf("%19s", word) == 1) puts(word);
        fflush(stdout);
        errno = ENOENT;
        perror("told");
        fprintf(stderr, "error %d\n", 7);
        exit(0);
    }
    close(server);
    FILE *f = fdopen(client, "r+");
    fputs("first line\nsecond\n", f);
    fflush(f);
    while (fgets(line, sizeof line, f)) printf("%s", line);
    int status;
    waitpid(pid, &status, 0);
    printf("child %d\n", status);
    fclose(f);
}

static void and_back(void) {
    char line[50];
    pair();
    fflush(stdout);
    int saved = dup(1);
    dup2(client, 1);
    printf("to the socket\n");
    fflush(stdout);
    dup2(saved, 1);
    printf("to the terminal\n");
    fflush(stdout);
    close(saved);
    shutdown(client, SHUT_WR);
    FILE *f = fdopen(server, "r");
    while (fgets(line, sizeof line, f)) printf("socket: %s", line);
    fclose(f);
    close(client);
}

/* libc puts /dev/null on 0, 1 and 2 by itself: the socket that was there is closed, though its process lives on. */
static void daemons(void) {
    char c;
    int alive[2];
    pair();
    if (pipe(alive)) exit(1);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        close(client);
        close(alive[1]);
        dup2(server, 0);
        close(server);
        if (daemon(1, 0)) _exit(1);
        _exit(read(alive[0], &c, 1) != 0);
    }
    close(server);
    printf("after daemon() %zd\n", read(client, &c, 1));
    close(alive[1]);
    close(alive[0]);
    waitpid(pid, NULL, 0);
    close(client);
}

int main(int argc, char **argv) {
    (void)argc;
    where.sin_family = AF_INET;
    inet_pton(AF_INET, argv[1], &where.sin_addr);
    two_streams();
    bad_modes();
    formatted();
    standard_streams();
    and_back();
    daemons();
    return 0;
}
