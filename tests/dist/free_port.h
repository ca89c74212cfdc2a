/* A port that is this process's own and that nothing listens on. Include after cmocka.h. */
#ifndef MC_TESTS_DIST_FREE_PORT_H
#define MC_TESTS_DIST_FREE_PORT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORTS_KEPT = 64 }; /* more than a test has jobs at a time */

/* A port from the system, which a socket that is bound to it keeps: nobody else is given it, and
 * the library can listen on it, for both sockets have SO_REUSEADDR and this one does not listen. It
 * is kept until this has been called PORTS_KEPT times more, or the process ends. */
static inline int free_port(void)
{
    static int kept[PORTS_KEPT];
    static int turn;
    struct sockaddr_in addr = {.sin_family = AF_INET};
    socklen_t size = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    assert_true(fd > 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0); /* on all interfaces */
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &size), 0);
    int *place = &kept[turn++ % PORTS_KEPT];
    if (*place) close(*place);
    *place = fd;
    return ntohs(addr.sin_port);
}

#endif
