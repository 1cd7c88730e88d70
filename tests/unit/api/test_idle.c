/* Connections that lie silent are closed, and those in use are not; over real sockets, with a server that has no model
 * yet: it answers probes. */
#include "testing.h"

#include "api/api.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDLE_S   2
#define LATE_MS  20000 /* a busy machine may be late, but not like this */
#define PAUSE_MS 250

static struct server *open_server(struct clock *clock, uint32_t idle_s)
{
    struct error e;
    struct server *s = NULL;
    clock_init(clock);
    const struct server_options o = {.threads = 1, .stuck_s = 60, .idle_s = idle_s, .clock = clock};
    assert_ok(e, server_open(&o, &s, &e));
    return s;
}

static int dial(const struct server *s)
{
    const char *port = strrchr(server_url(s), ':');
    assert_non_null(port);
    const struct sockaddr_in to = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(port + 1, NULL, 10)),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* What comes within ms: 1 = bytes, 0 = the end of the connection, -1 = nothing. */
static int wait_for(int fd, int ms)
{
    char bytes[4096];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, ms) <= 0)
        return -1;
    return recv(fd, bytes, sizeof bytes, 0) > 0;
}

/* The answer is small and comes in one piece. */
static void ask(int fd)
{
    static const char text[] = "GET /startupz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_int_equal(send(fd, text, sizeof text - 1, MSG_NOSIGNAL), (ssize_t)sizeof text - 1);
    assert_int_equal(wait_for(fd, LATE_MS), 1);
}

static void connections_that_lie_silent_are_closed_and_others_not(void **state)
{
    struct clock clock;
    struct server *s = open_server(&clock, IDLE_S), *patient = open_server(&clock, 0);
    const int fresh = dial(s), silent = dial(s), busy = dial(s), usual = dial(patient);
    const uint64_t start = clock_now(&clock);
    ask(silent);
    ask(usual);
    for (uint64_t now = start; now - start < IDLE_S * NS_PER_S * 5 / 4; now = clock_now(&clock)) {
        ask(busy);
        assert_int_equal(wait_for(busy, PAUSE_MS), -1);
        if (now - start < IDLE_S * NS_PER_S / 2)
            assert_int_equal(wait_for(silent, 0), -1);
    }
    assert_int_equal(wait_for(silent, LATE_MS), 0);
    assert_int_equal(wait_for(fresh, LATE_MS), 0); /* nothing was ever asked on it */
    ask(busy);
    ask(usual); /* 75 s are not over */
    close(fresh);
    close(silent);
    close(busy);
    close(usual);
    server_close(s);
    server_close(patient);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_that_lie_silent_are_closed_and_others_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
