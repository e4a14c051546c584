// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "node_socket.h"

#define TABLE_NAME "guests.table"
#define CLOSED_NAME "closed.gpus"

enum {
  LINES_LIMIT = 512,
  LINE_SIZE = 320,
  TABLE_SIZE = 65536,
  LOCK_RETRY_MS = 2,
  CLOSED_FOR_S = 300
};

struct line {
  uint32_t job;
  pid_t pid;
  unsigned long long start;
  struct slip_gpus gpus;
};

struct table {
  size_t count;
  struct line lines[LINES_LIMIT];
};

static bool lock(int fd, int64_t deadline_ms);
static void read_table(int fd, struct table* table);
static bool read_line(const char* text, struct line* line);
static bool read_gpus(const char* text, struct slip_gpus* gpus);
static void write_table(int fd, const struct table* table);
static bool is_alive(const struct line* line);
static unsigned long long start_of(pid_t pid);
static const struct line* line_of(const struct table* table, uint32_t job, pid_t pid);
static void choose(const struct table* table, uint32_t job, unsigned wanted, unsigned gpus_on_node,
                   const struct slip_gpus* closed, struct slip_gpus* bound);
static bool holds(const struct slip_gpus* gpus, unsigned index);

int slip_open_table(const char* folder, bool create) {
  if (create && mkdir(folder, 0755) != 0 && errno != EEXIST) return -1;
  int place = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (place < 0) return -1;
  struct stat found;
  // In a folder that others may write to, the table could be a trap.
  bool safe = fstat(place, &found) == 0 && found.st_uid == geteuid() && !(found.st_mode & 0022);
  int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
  int table = safe ? openat(place, TABLE_NAME, flags, 0600) : -1;
  close(place);
  return table;
}

unsigned slip_count_gpus(const char* folder) {
  DIR* devices = opendir(folder);
  if (!devices) return 0;
  unsigned count = 0;
  for (const struct dirent* entry; (entry = readdir(devices)) != NULL;) {
    const char* name = entry->d_name;
    if (strncmp(name, "nvidia", 6) != 0 || !isdigit((unsigned char)name[6])) continue;
    if (name[6 + strspn(name + 6, "0123456789")] == '\0' && count < SLIP_GPUS_LIMIT) count++;
  }
  closedir(devices);
  return count;
}

void slip_bind(int fd, uint32_t job, pid_t owner, unsigned wanted, unsigned gpus_on_node,
               const struct slip_gpus* closed, int64_t deadline_ms, struct slip_gpus* bound) {
  static struct table table;
  table.count = 0;
  if (wanted > gpus_on_node) wanted = gpus_on_node;
  bool locked = fd >= 0 && lock(fd, deadline_ms);
  if (fd >= 0) read_table(fd, &table);
  const struct line* own = line_of(&table, job, owner);
  if (own && own->gpus.count >= wanted) {
    *bound = own->gpus;
    bound->count = wanted;
  } else {
    choose(&table, job, wanted, gpus_on_node, closed, bound);
    if (locked && table.count < LINES_LIMIT) {
      table.lines[table.count++] = (struct line){job, owner, start_of(owner), *bound};
      write_table(fd, &table);
    }
  }
  if (locked) flock(fd, LOCK_UN);
}

void slip_read_closed(const char* folder, struct slip_gpus* closed) {
  char path[LINE_SIZE];
  char text[LINE_SIZE];
  struct stat found;
  ssize_t length = 0;
  closed->count = 0;
  snprintf(path, sizeof path, "%s/%s", folder, CLOSED_NAME);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) &&
      time(NULL) - found.st_mtime <= CLOSED_FOR_S)
    length = read(fd, text, sizeof text - 1);
  close(fd);
  text[length > 0 ? length : 0] = '\0';
  text[strcspn(text, "\n")] = '\0';
  if (!read_gpus(text, closed)) closed->count = 0;
}

bool slip_find_bound(int fd, uint32_t job, struct slip_gpus* bound) {
  static struct table table;
  read_table(fd, &table);
  const struct line* found = line_of(&table, job, 0);
  if (found) *bound = found->gpus;
  return found != NULL;
}

void slip_take_part(const struct slip_job* job, const struct slip_place* place,
                    struct slip_gpus* gpus) {
  struct slip_gpus all = {0};
  for (unsigned gpu = 0; gpu < SLIP_GPUS_LIMIT; gpu++)
    if (holds(gpus, gpu)) all.index[all.count++] = gpu;
  *gpus = all;
  unsigned each = slip_gpus_per_task(job, place);
  if (each == 0 || each >= all.count) return;
  unsigned first = job->tasks_per_gpu ? place->task / job->tasks_per_gpu : place->task * each;
  gpus->count = each;
  for (unsigned at = 0; at < each; at++) gpus->index[at] = all.index[(first + at) % all.count];
}

void slip_write_gpus(const struct slip_gpus* gpus, char* text, size_t size) {
  size_t length = 0;
  text[0] = '\0';
  for (unsigned at = 0; at < gpus->count && length < size; at++)
    length +=
        (size_t)snprintf(text + length, size - length, "%s%u", at ? "," : "", gpus->index[at]);
}

static bool lock(int fd, int64_t deadline_ms) {
  const struct timespec pause = {.tv_nsec = LOCK_RETRY_MS * 1000000L};
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || slip_now_ms() >= deadline_ms) return false;
    nanosleep(&pause, NULL);
  }
  return true;
}

// Lines of processes that live; what is not understood is dropped like a dead one.
static void read_table(int fd, struct table* table) {
  static char text[TABLE_SIZE];
  ssize_t length = pread(fd, text, sizeof text - 1, 0);
  text[length > 0 ? length : 0] = '\0';
  table->count = 0;
  char* rest = NULL;
  for (char* at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
    struct line* line = &table->lines[table->count];
    if (read_line(at, line) && is_alive(line) && ++table->count == LINES_LIMIT) return;
  }
}

static bool read_line(const char* text, struct line* line) {
  int at = 0;
  int read =
      sscanf(text, "job=%u pid=%d start=%llu gpus=%n", &line->job, &line->pid, &line->start, &at);
  return read == 3 && at > 0 && read_gpus(text + at, &line->gpus);
}

static bool read_gpus(const char* text, struct slip_gpus* gpus) {
  gpus->count = 0;
  while (isdigit((unsigned char)*text) && gpus->count < SLIP_GPUS_LIMIT) {
    char* end;
    unsigned long index = strtoul(text, &end, 10);
    if (index >= SLIP_GPUS_LIMIT) return false;
    gpus->index[gpus->count++] = (unsigned)index;
    if (*end == '\0') return true;
    if (*end != ',') return false;
    text = end + 1;
  }
  return false;
}

static void write_table(int fd, const struct table* table) {
  static char text[TABLE_SIZE];
  size_t length = 0;
  for (size_t at = 0; at < table->count && length + LINE_SIZE < sizeof text; at++) {
    const struct line* line = &table->lines[at];
    char gpus[LINE_SIZE - 64];
    slip_write_gpus(&line->gpus, gpus, sizeof gpus);
    length +=
        (size_t)snprintf(text + length, sizeof text - length, "job=%u pid=%d start=%llu gpus=%s\n",
                         line->job, line->pid, line->start, gpus);
  }
  // A table cut short by a full disk is read as what is left of it: no line is worth a failure.
  if (pwrite(fd, text, length, 0) == (ssize_t)length && ftruncate(fd, (off_t)length) != 0) return;
}

static bool is_alive(const struct line* line) {
  return line->start != 0 && start_of(line->pid) == line->start;
}

// When a process was started, in clock ticks since boot; 0 if there is none. With it a number that
// was given to another process meanwhile is not taken for the old one.
static unsigned long long start_of(pid_t pid) {
  char path[32];
  char text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* after_name = strrchr(text, ')');  // the name may hold anything, also ')'
  unsigned long long start = 0;
  char state = 'Z';
  if (!after_name ||
      sscanf(after_name + 1,
             " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
             &state, &start) != 2)
    return 0;
  return state == 'Z' || state == 'X' ? 0 : start;
}

// The line of a job and a process of it (0: of any process).
static const struct line* line_of(const struct table* table, uint32_t job, pid_t pid) {
  for (size_t at = 0; at < table->count; at++) {
    const struct line* line = &table->lines[at];
    if (line->job == job && (pid == 0 || line->pid == pid)) return line;
  }
  return NULL;
}

// Another step of the same job shares its GPUs; then the fewest jobs decide; then the number. A
// closed GPU weighs more than all the jobs there can be.
static void choose(const struct table* table, uint32_t job, unsigned wanted, unsigned gpus_on_node,
                   const struct slip_gpus* closed, struct slip_gpus* bound) {
  unsigned load[SLIP_GPUS_LIMIT] = {0};
  for (unsigned at = 0; at < closed->count; at++) load[closed->index[at]] += LINES_LIMIT + 1;
  for (size_t at = 0; at < table->count; at++) {
    const struct line* line = &table->lines[at];
    for (unsigned gpu = 0; line->job != job && gpu < line->gpus.count; gpu++)
      load[line->gpus.index[gpu]]++;
  }
  const struct line* sibling = line_of(table, job, 0);
  bound->count = 0;
  while (bound->count < wanted) {
    unsigned best = SLIP_GPUS_LIMIT;
    for (unsigned gpu = 0; gpu < gpus_on_node; gpu++) {
      if (holds(bound, gpu)) continue;
      bool theirs = sibling && holds(&sibling->gpus, gpu);
      bool best_theirs = best < SLIP_GPUS_LIMIT && sibling && holds(&sibling->gpus, best);
      if (best == SLIP_GPUS_LIMIT || theirs > best_theirs ||
          (theirs == best_theirs && load[gpu] < load[best]))
        best = gpu;
    }
    bound->index[bound->count++] = best;
  }
}

static bool holds(const struct slip_gpus* gpus, unsigned index) {
  for (unsigned at = 0; at < gpus->count; at++)
    if (gpus->index[at] == index) return true;
  return false;
}
