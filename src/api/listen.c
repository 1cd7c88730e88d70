/* The sockets that clients connect to: TCP, a Unix socket, or those that a supervisor opened for us; and the message
 * back to the supervisor. */
#include "api/api_int.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG           1024
#define INHERITED_FD_BASE 3 /* as sd_listen_fds has it */

static enum err add_listener(struct server *s, int fd, struct error *e)
{
    if (s->n_listeners == HTTP_LISTENERS_MAX) {
        close(fd);
        return FAIL(e, ERR_LIMIT, "more than %d listening sockets", HTTP_LISTENERS_MAX);
    }
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        close(fd);
        return FAIL(e, ERR_IO, "a listening socket: %s", strerror(errno));
    }
    s->listeners[s->n_listeners++] = fd;
    return OK;
}

/* ---- TCP ---- */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
    }
    struct sockaddr_in6 in6;
    if (a->sa_family != AF_INET6)
        return false;
    memcpy(&in6, a, sizeof in6);
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
}

/* Now the port is known even when any would do. */
static void write_url(struct server *s, const char *host, int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    char port[16] = "?";
    if (getsockname(fd, (struct sockaddr *)&a, &n) == 0) {
        getnameinfo((struct sockaddr *)&a, n, NULL, 0, port, sizeof port, NI_NUMERICSERV);
        s->is_local = is_loopback((const struct sockaddr *)&a);
    }
    const bool v6 = strchr(host, ':') != NULL;
    snprintf(s->url, sizeof s->url, "%s://%s%s%s:%s", s->tls != NULL ? "https" : "http", v6 ? "[" : "", host,
        v6 ? "]" : "", port);
}

static enum err open_tcp(struct server *s, struct error *e)
{
    const char *host = s->o.host != NULL ? s->o.host : "127.0.0.1";
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[8];
    const int one = 1;
    int fd = -1, saved = 0;
    snprintf(port, sizeof port, "%u", s->o.port);
    const int rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0)
        return FAIL(e, ERR_INVALID, "option --host: '%s' is no address of this machine: %s", host, gai_strerror(rc));
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* connections inherit it: a token leaves at once */
        if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
            saved = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return FAIL(e, ERR_IO, "cannot listen on %s port %s: %s", host, port, strerror(saved != 0 ? saved : errno));
    TRY(add_listener(s, fd, e));
    write_url(s, host, fd);
    return OK;
}

/* ---- Unix ---- */

/* A socket file that nobody listens on is left over from a process that was killed. */
static bool is_dead_socket(const struct sockaddr_un *a)
{
    struct stat st;
    if (lstat(a->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool dead = fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return dead;
}

static enum err open_unix(struct server *s, struct error *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(s->o.unix_path) >= sizeof a.sun_path)
        return FAIL(e, ERR_LIMIT, "option --uds: the path is longer than %zu bytes", sizeof a.sun_path - 1);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", s->o.unix_path);
    if (is_dead_socket(&a))
        unlink(a.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&a, sizeof a) != 0 || listen(fd, BACKLOG) != 0) {
        const int saved = errno;
        if (fd >= 0)
            close(fd);
        return FAIL(e, ERR_IO, "cannot listen on %s: %s", s->o.unix_path, strerror(saved));
    }
    s->owns_unix_path = true;
    s->is_local = true;
    snprintf(s->url, sizeof s->url, "unix:%s", s->o.unix_path);
    return add_listener(s, fd, e);
}

/* ---- inherited ---- */

static uint32_t n_inherited(void)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    char own[24];
    snprintf(own, sizeof own, "%ld", (long)getpid());
    if (pid == NULL || fds == NULL || strcmp(pid, own) != 0)
        return 0;
    const unsigned long n = strtoul(fds, NULL, 10);
    return n <= HTTP_LISTENERS_MAX ? (uint32_t)n : HTTP_LISTENERS_MAX;
}

static enum err take_inherited(struct server *s, uint32_t n, struct error *e)
{
    for (uint32_t i = 0; i < n; i++) {
        const int fd = INHERITED_FD_BASE + (int)i, one = 1;
        int listening = 0;
        socklen_t size = sizeof listening;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || !listening)
            return FAIL(e, ERR_INVALID, "the inherited descriptor %d is no listening socket", fd);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a Unix socket says no, and needs none */
        TRY(add_listener(s, fd, e));
    }
    snprintf(s->url, sizeof s->url, "%u inherited socket%s", n, n == 1 ? "" : "s");
    return OK;
}

enum err listen_open(struct server *s, struct error *e)
{
    const uint32_t n = s->o.take_inherited ? n_inherited() : 0;
    return n > 0 ? take_inherited(s, n, e) : s->o.unix_path != NULL ? open_unix(s, e) : open_tcp(s, e);
}

void listen_close(struct server *s)
{
    for (uint32_t i = 0; i < s->n_listeners; i++)
        close(s->listeners[i]);
    s->n_listeners = 0;
    if (s->owns_unix_path)
        unlink(s->o.unix_path);
    s->owns_unix_path = false;
}

/* ---- the supervisor ---- */

void server_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (path == NULL || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof a.sun_path)
        return;
    const size_t n = strlen(path);
    memcpy(a.sun_path, path, n);
    if (path[0] == '@')
        a.sun_path[0] = '\0'; /* the abstract namespace */
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&a, size); /* nobody may listen */
    close(fd);
}
