/* Every call on sockets, with and without an address: prints `name=errno` for each, 0 when it worked.
   pairs STREAM_LISTENER DATAGRAM_LISTENER FREE_PATH */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_un listener, datagrams, unused;

static void tell(const char *kind, const char *name, long result) {
    printf("%s%s=%d\n", kind, name, result < 0 ? errno : 0);
}

static struct sockaddr_un at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    return address;
}

static struct mmsghdr message(struct iovec *data, struct sockaddr_un *address) {
    struct mmsghdr each = {.msg_hdr = {.msg_iov = data, .msg_iovlen = 1}};
    each.msg_hdr.msg_name = address;
    each.msg_hdr.msg_namelen = address ? sizeof *address : 0;
    return each;
}

static void use_pair(const char *kind, int type) {
    int ends[2], number = 1 << 16;
    char letter = 'x', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&letter, 1};
    struct mmsghdr plain = message(&data, NULL), passing = plain;
    struct sockaddr_un own;
    socklen_t size = sizeof number, length = sizeof own;
    tell(kind, "socketpair", socketpair(AF_UNIX, type, 0, ends));
    tell(kind, "send", send(ends[0], &letter, 1, 0));
    tell(kind, "recv", recv(ends[1], &letter, 1, 0));
    tell(kind, "sendto", sendto(ends[0], &letter, 1, MSG_NOSIGNAL, NULL, 16));
    tell(kind, "recvfrom", recvfrom(ends[1], &letter, 1, 0, (struct sockaddr *)&own, &length));
    tell(kind, "sendmmsg", sendmmsg(ends[0], &plain, 1, 0));
    tell(kind, "recvmmsg", recvmmsg(ends[1], &plain, 1, 0, NULL));
    passing.msg_hdr.msg_control = control;
    passing.msg_hdr.msg_controllen = sizeof control;
    struct cmsghdr *header = CMSG_FIRSTHDR(&passing.msg_hdr);
    *header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &ends[0], sizeof(int));
    tell(kind, "sendmsg", sendmsg(ends[0], &passing.msg_hdr, 0));
    tell(kind, "recvmsg", recvmsg(ends[1], &passing.msg_hdr, 0));
    tell(kind, "setsockopt", setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &number, sizeof number));
    tell(kind, "getsockopt", getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &number, &size));
    length = sizeof own;
    tell(kind, "getsockname", getsockname(ends[0], (struct sockaddr *)&own, &length));
    length = sizeof own;
    tell(kind, "getpeername", getpeername(ends[0], (struct sockaddr *)&own, &length));
    struct mmsghdr addressed = message(&data, &datagrams);
    tell(kind, "elsewhere sendto", sendto(ends[0], &letter, 1, 0, (struct sockaddr *)&datagrams, sizeof datagrams));
    tell(kind, "elsewhere sendmsg", sendmsg(ends[0], &addressed.msg_hdr, 0));
    tell(kind, "elsewhere sendmmsg", sendmmsg(ends[0], &addressed, 1, 0));
    tell(kind, "elsewhere connect", connect(ends[0], (struct sockaddr *)&listener, sizeof listener));
    tell(kind, "shutdown", shutdown(ends[0], SHUT_WR));
    close(ends[0]);
    close(ends[1]);
}

static void use_addresses(void) {
    char letter = 'x';
    struct iovec data = {&letter, 1};
    struct mmsghdr addressed = message(&data, &datagrams);
    int stream = socket(AF_UNIX, SOCK_STREAM, 0), server = socket(AF_UNIX, SOCK_STREAM, 0), ends[2];
    tell("to ", "connect", connect(stream, (struct sockaddr *)&listener, sizeof listener));
    tell("to ", "bind", bind(server, (struct sockaddr *)&unused, sizeof unused));
    tell("to ", "listen", listen(server, 1));
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    connect(client, (struct sockaddr *)&unused, sizeof unused);
    tell("to ", "accept", accept(server, NULL, NULL));
    client = socket(AF_UNIX, SOCK_STREAM, 0);
    connect(client, (struct sockaddr *)&unused, sizeof unused);
    tell("to ", "accept4", accept4(server, NULL, NULL, SOCK_CLOEXEC));
    unlink(unused.sun_path);
    int kinds[] = {SOCK_DGRAM, SOCK_RAW};
    const char *names[] = {"to datagram ", "to raw "};
    for (int each = 0; each < 2; each++) {
        ends[0] = socket(AF_UNIX, kinds[each], 0);
        tell(names[each], "socket", ends[0]);
        tell(names[each], "sendto", sendto(ends[0], &letter, 1, 0, (struct sockaddr *)&datagrams, sizeof datagrams));
        ends[0] = -1;
        tell(names[each], "socketpair", socketpair(AF_UNIX, kinds[each] | SOCK_CLOEXEC, 0, ends));
    }
    if (ends[0] < 0)
        errno = EPERM;
    tell("to datagram pair ", "sendmsg", ends[0] < 0 ? -1 : sendmsg(ends[0], &addressed.msg_hdr, 0));
    tell("to datagram pair ", "connect", ends[0] < 0 ? -1 : connect(ends[0], (struct sockaddr *)&datagrams, sizeof datagrams));
    tell("to ", "inet", socket(AF_INET, SOCK_STREAM, 0));
    tell("to ", "inet6", socket(AF_INET6, SOCK_DGRAM, 0));
    tell("to ", "netlink", socket(AF_NETLINK, SOCK_RAW, 0));
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    listener = at(arguments[1]);
    datagrams = at(arguments[2]);
    unused = at(arguments[3]);
    use_pair("stream ", SOCK_STREAM);
    use_pair("packet ", SOCK_SEQPACKET);
    use_addresses();
    return 0;
}
