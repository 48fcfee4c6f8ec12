/* As inetd: a listener that forks, puts each connection on 0, 1 and 2, and execs a server that knows stdio only. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int serve(void) {
    char line[100], word[20];
    printf("220 ready, on %d %d %d\r\n", fileno(stdin), fileno(stdout), fileno(stderr));
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "QUIT%19s", word) == 1 || !strncmp(line, "QUIT", 4)) break;
        printf("250 %s", line);
        fflush(stdout);
    }
    errno = ENOENT;
    perror("421");
    puts("221 bye");
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2) return serve();
    struct sockaddr_in where = {.sin_family = AF_INET};
    socklen_t len = sizeof where;
    inet_pton(AF_INET, argv[1], &where.sin_addr);
    int l = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(l, (void *)&where, len) || listen(l, 5) || getsockname(l, (void *)&where, &len)) return 1;
    for (int i = 0; i < 3; i++) {
        int c = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c, (void *)&where, len)) return 2;
        int s = accept(l, NULL, NULL);
        pid_t pid = fork();
        if (pid == 0) {
            close(l);
            close(c);
            for (int fd = 0; fd < 3; fd++) dup2(s, fd);
            close(s);
            execl("/proc/self/exe", argv[0], argv[1], "serve", NULL);
            _exit(9);
        }
        close(s);
        char line[200];
        FILE *f = fdopen(c, "r+");
        fgets(line, sizeof line, f);
        printf("%d: %s", i, line);
        fprintf(f, "hello %d\n", i);
        fflush(f);
        fgets(line, sizeof line, f);
        printf("%d: %s", i, line);
        if (i == 1) shutdown(c, SHUT_WR);
        else fputs("QUIT\n", f), fflush(f);
        while (fgets(line, sizeof line, f)) printf("%d: %s", i, line);
        int status;
        waitpid(pid, &status, 0);
        printf("%d: %d\n", i, status);
        fclose(f);
    }
    return 0;
}
