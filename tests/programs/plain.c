/* A program without the shim: copies its standard input to its standard output, then says how it ended.
   plain [BYTES]: after BYTES stops reading. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static char buf[65536];
    long long left = argc > 1 ? atoll(argv[1]) : -1, total = 0;
    while (left != 0) {
        size_t want = left > 0 && left < (long long)sizeof buf ? (size_t)left : sizeof buf;
        ssize_t n = read(0, buf, want);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            fprintf(stderr, "read: %s\n", strerror(errno));
            return 2;
        }
        if (n == 0) break;
        for (ssize_t at = 0; at < n;) {
            ssize_t k = write(1, buf + at, n - at);
            if (k < 0) {
                fprintf(stderr, "write: %s\n", strerror(errno));
                return 3;
            }
            at += k;
        }
        total += n;
        if (left > 0) left -= n;
    }
    fprintf(stderr, "copied %lld\n", total);
    return 0;
}
