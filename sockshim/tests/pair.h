/* A connection of two ends in one process. Include after the headers of sockets. */
static struct sockaddr_in where;
static int client, server;

static void pair(void) {
    socklen_t len = sizeof where;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    where.sin_port = 0;
    if (bind(l, (void *)&where, len) || listen(l, 1) || getsockname(l, (void *)&where, &len)) exit(1);
    client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, (void *)&where, len)) exit(1);
    server = accept(l, NULL, NULL);
    close(l);
}
