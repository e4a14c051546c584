// SPDX-License-Identifier: Apache-2.0
#include "node_socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WAIT "wait\n"

static int open_socket(const char* path, const char** why);
static bool peer_may_answer(int fd, const char* path);
static bool send_all(int fd, const char* text, int64_t deadline_ms);
static bool receive_all(int fd, struct slip_answer* answer, int64_t deadline_ms);
static bool wait_for(int fd, short events, int64_t deadline_ms);
static bool read_line(char* line, struct slip_order* order);
static bool is_name(const char* name, size_t length);
static bool is_text(const char* value);

int64_t slip_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool slip_ask_node(const char* socket_path, const char* request, int64_t deadline_ms,
                   struct slip_answer* answer, const char** why) {
  answer->count = 0;
  answer->text[0] = '\0';
  int fd = open_socket(socket_path, why);
  if (fd < 0) return false;
  bool good = false;
  if (!peer_may_answer(fd, socket_path))
    *why = "somebody else than root listens";
  else if (!send_all(fd, request, deadline_ms))
    *why = "it does not listen";
  else if (!receive_all(fd, answer, deadline_ms))
    *why = "no whole answer in time";
  else if (!slip_read_answer(answer))
    *why = "the answer is not understood";
  else
    good = true;
  close(fd);
  return good;
}

static int open_socket(const char* path, const char** why) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) {
    *why = "the path of the socket is too long";
    return -1;
  }
  strcpy(address.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    *why = "no socket can be made";
    return -1;
  }
  // A Unix socket connects at once or, its queue being full, not at all: there is nothing to wait.
  if (connect(fd, (struct sockaddr*)&address, sizeof address) == 0) return fd;
  *why = errno == ENOENT ? "there is no coordinator" : "the coordinator does not accept";
  close(fd);
  return -1;
}

// Only root, or whoever owns the folder of the socket, may tell a job's environment.
static bool peer_may_answer(int fd, const char* path) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (peer.uid == 0) return true;
  char folder[sizeof((struct sockaddr_un*)0)->sun_path];
  strcpy(folder, path);
  char* slash = strrchr(folder, '/');
  if (!slash) return false;
  *slash = '\0';
  struct stat found;
  return stat(folder, &found) == 0 && found.st_uid == peer.uid;
}

static bool send_all(int fd, const char* text, int64_t deadline_ms) {
  size_t left = strlen(text);
  while (left > 0) {
    ssize_t sent = send(fd, text, left, MSG_NOSIGNAL);
    if (sent > 0) {
      text += sent;
      left -= (size_t)sent;
    } else if (errno != EINTR && (errno != EAGAIN || !wait_for(fd, POLLOUT, deadline_ms))) {
      return false;
    }
  }
  return true;
}

// Until "ok" stands alone on the last line, or the other side closes.
static bool receive_all(int fd, struct slip_answer* answer, int64_t deadline_ms) {
  size_t length = 0;
  bool is_heard = false;
  for (;;) {
    if (length + 1 >= sizeof answer->text || !wait_for(fd, POLLIN, deadline_ms)) return false;
    ssize_t got = recv(fd, answer->text + length, sizeof answer->text - 1 - length, 0);
    if (got == 0) return true;
    if (got < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (got <= 0) continue;
    if (memchr(answer->text + length, '\0', (size_t)got)) return false;
    length += (size_t)got;
    answer->text[length] = '\0';
    if (!is_heard && strncmp(answer->text, WAIT, strlen(WAIT)) == 0) {
      is_heard = true;
      deadline_ms = slip_now_ms() + SLIP_HEARD_MS;
      length -= strlen(WAIT);
      memmove(answer->text, answer->text + strlen(WAIT), length + 1);
    }
    if (length == 3 ? strcmp(answer->text, "ok\n") == 0
                    : length > 3 && strcmp(answer->text + length - 4, "\nok\n") == 0)
      return true;
  }
}

static bool wait_for(int fd, short events, int64_t deadline_ms) {
  struct pollfd wanted = {.fd = fd, .events = events};
  for (;;) {
    int64_t left_ms = deadline_ms - slip_now_ms();
    if (left_ms <= 0) return false;
    int ready = poll(&wanted, 1, (int)left_ms);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool slip_read_answer(struct slip_answer* answer) {
  answer->count = 0;
  char* rest = answer->text;
  while (rest) {
    char* line = rest;
    char* end = strchr(line, '\n');
    if (!end) return false;  // cut off
    *end = '\0';
    rest = end + 1;
    if (strcmp(line, "ok") == 0) return *rest == '\0';
    if (answer->count == SLIP_ANSWER_LINES) return false;
    if (!read_line(line, &answer->orders[answer->count++])) return false;
  }
  return false;
}

static bool read_line(char* line, struct slip_order* order) {
  if (strncmp(line, "unset ", 6) == 0) {
    *order = (struct slip_order){line + 6, NULL};
    return is_name(line + 6, strlen(line + 6));
  }
  if (strncmp(line, "env ", 4) != 0) return false;
  char* equals = strchr(line + 4, '=');
  if (!equals || !is_name(line + 4, (size_t)(equals - line - 4)) || !is_text(equals + 1))
    return false;
  *equals = '\0';
  *order = (struct slip_order){line + 4, equals + 1};
  return true;
}

static bool is_name(const char* name, size_t length) {
  return length > 0 && length <= 128 && strchr("0123456789", name[0]) == NULL &&
         strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") >= length;
}

static bool is_text(const char* value) {
  for (const unsigned char* at = (const unsigned char*)value; *at; at++)
    if (*at < 0x20 || *at == 0x7f) return false;
  return true;
}
