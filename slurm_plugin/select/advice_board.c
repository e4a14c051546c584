/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding a record on the advice board. A lookup costs one pread for a miss, two for a hit.
 */
#include "advice_board.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the advice board is little-endian; nobody has run Slipstream on a big-endian machine"
#endif

_Static_assert(sizeof(struct slip_header) == 72, "layout");
_Static_assert(sizeof(struct slip_entry) == 16, "layout");
_Static_assert(sizeof(struct slip_slot) == SLIP_SLOT_BYTES, "layout");

/* A record that is replaced while it is read is found at its new place on the next try. */
enum { MOST_TRIES = 4 };

enum outcome { FOUND, ABSENT, CHANGED };

static void look(struct slip_board* board, uint64_t now_ns);
static bool open_board(struct slip_board* board, const struct stat* seen);
static bool read_header(struct slip_board* board, struct slip_header* header);
static enum slip_kind find(struct slip_board* board, uint64_t token, uint32_t task, uint64_t now_s);
static enum outcome find_once(struct slip_board* board, uint64_t token, uint32_t task);
static bool slot_is_whole(const struct slip_slot* slot, uint64_t generation);
static bool read_boot_id(uint8_t boot_id[16]);
static bool read_exactly(int fd, void* buffer, size_t bytes, off_t offset);
static uint64_t boottime_ns(void);

bool slip_board_init(struct slip_board* board, const char* path) {
  memset(board, 0, sizeof(*board));
  board->fd = -1;
  board->sign_fd = -1;
  size_t bytes = strlen(path) + 1;
  if (bytes > sizeof(board->path)) return false;
  memcpy(board->path, path, bytes);
  return true;
}

enum slip_kind slip_board_find(struct slip_board* board, uint64_t token, uint32_t task) {
  uint64_t now_ns = boottime_ns();
  if (!board->ever_looked || now_ns - board->looked_ns >= SLIP_LOOK_EVERY_NS) look(board, now_ns);
  if (board->fd < 0) return SLIP_NONE;
  uint64_t now_s = now_ns / 1000000000u;
  enum slip_kind kind = find(board, token, task, now_s);
  if (kind == SLIP_NONE && task != SLIP_ANY_TASK) kind = find(board, token, SLIP_ANY_TASK, now_s);
  return kind;
}

void slip_board_close(struct slip_board* board) {
  if (board->fd >= 0) close(board->fd);
  board->fd = -1;
}

void slip_board_sign(struct slip_board* board) {
  uint64_t now_ns = boottime_ns();
  if (!board->path[0] || (board->signed_ns && now_ns - board->signed_ns < SLIP_LOOK_EVERY_NS))
    return;
  board->signed_ns = now_ns;
  char path[sizeof(board->path) + sizeof(SLIP_SIGN_SUFFIX)];
  snprintf(path, sizeof(path), "%s" SLIP_SIGN_SUFFIX, board->path);
  struct stat seen;
  bool there = stat(path, &seen) == 0;
  if (board->sign_fd >= 0) {
    if (there && seen.st_dev == board->sign_device && seen.st_ino == board->sign_inode) return;
    close(board->sign_fd);
    board->sign_fd = -1;
  }
  /* Made here as well: slurmctld may be there before the daemon is. */
  int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return;
  if (fstat(fd, &seen) != 0 || !S_ISREG(seen.st_mode) || flock(fd, LOCK_SH | LOCK_NB) != 0) {
    close(fd); /* the writer is looking just now: the next time will do */
    return;
  }
  board->sign_fd = fd;
  board->sign_device = seen.st_dev;
  board->sign_inode = seen.st_ino;
}

uint32_t slip_bucket_of(uint64_t token, uint32_t task, uint32_t bucket_count) {
  uint64_t mixed = token ^ ((uint64_t)task * 0x9e3779b97f4a7c15u);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  mixed ^= mixed >> 31;
  return (uint32_t)(mixed % bucket_count);
}

/* Is the file at the path still the one that is open, and still the same board? */
static void look(struct slip_board* board, uint64_t now_ns) {
  board->looked_ns = now_ns;
  board->ever_looked = true;
  struct stat seen;
  bool there = board->path[0] && stat(board->path, &seen) == 0;
  bool same =
      there && board->fd >= 0 && seen.st_dev == board->device && seen.st_ino == board->inode;
  if (!same) {
    slip_board_close(board);
    if (!there || !open_board(board, &seen)) return;
  }
  if (!read_header(board, &board->header)) slip_board_close(board);
}

static bool open_board(struct slip_board* board, const struct stat* seen) {
  /* O_NONBLOCK: a fifo of that name must not hang the controller. */
  int fd = open(board->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat opened;
  bool ours = fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode) && opened.st_dev == seen->st_dev &&
              opened.st_ino == seen->st_ino && (opened.st_uid == 0 || opened.st_uid == geteuid()) &&
              !(opened.st_mode & (S_IWGRP | S_IWOTH)); /* users must not place each other's jobs */
  if (!ours) {
    close(fd);
    return false;
  }
  board->fd = fd;
  board->device = opened.st_dev;
  board->inode = opened.st_ino;
  return true;
}

static bool read_header(struct slip_board* board, struct slip_header* header) {
  if (!board->boot_id_known) board->boot_id_known = read_boot_id(board->boot_id);
  if (!read_exactly(board->fd, header, sizeof(*header), 0)) return false;
  return memcmp(header->magic, SLIP_MAGIC, sizeof(header->magic)) == 0 &&
         header->version == SLIP_VERSION && header->header_bytes == SLIP_HEADER_BYTES &&
         header->bucket_entries == SLIP_BUCKET_ENTRIES && header->slot_bytes == SLIP_SLOT_BYTES &&
         header->bucket_count >= 1 && header->bucket_count <= SLIP_MOST_BUCKETS &&
         header->slot_count >= 1 && header->slot_count <= SLIP_MOST_SLOTS &&
         header->checksum == slip_crc32(header, offsetof(struct slip_header, checksum)) &&
         /* Times on the board count from this boot: one from before a reboot means nothing. */
         board->boot_id_known && memcmp(header->boot_id, board->boot_id, 16) == 0;
}

static enum slip_kind find(struct slip_board* board, uint64_t token, uint32_t task,
                           uint64_t now_s) {
  enum outcome outcome = CHANGED;
  for (int tries = 0; outcome == CHANGED && tries < MOST_TRIES; tries++)
    outcome = find_once(board, token, task);
  if (outcome != FOUND) return SLIP_NONE;
  const struct slip_slot* slot = &board->slot;
  if (slot->expires_boot_s <= now_s || slot->expires_boot_s - now_s > SLIP_LONGEST_S)
    return SLIP_NONE;
  return slot->kind == SLIP_REQUIRE ? SLIP_REQUIRE : SLIP_PREFER;
}

static enum outcome find_once(struct slip_board* board, uint64_t token, uint32_t task) {
  const struct slip_header* header = &board->header;
  uint32_t bucket = slip_bucket_of(token, task, header->bucket_count);
  off_t at = (off_t)SLIP_HEADER_BYTES + (off_t)bucket * (off_t)sizeof(board->bucket);
  if (!read_exactly(board->fd, board->bucket, sizeof(board->bucket), at)) return ABSENT;
  for (uint32_t i = 0; i < SLIP_BUCKET_ENTRIES; i++) {
    const struct slip_entry* entry = &board->bucket[i];
    if (entry->slot_plus_one == 0 || entry->token != token || entry->task != task) continue;
    if (entry->slot_plus_one > header->slot_count) return CHANGED;
    at = (off_t)SLIP_HEADER_BYTES + (off_t)header->bucket_count * (off_t)sizeof(board->bucket) +
         (off_t)(entry->slot_plus_one - 1) * (off_t)sizeof(board->slot);
    if (!read_exactly(board->fd, &board->slot, sizeof(board->slot), at)) return ABSENT;
    bool right = slot_is_whole(&board->slot, header->generation) && board->slot.token == token &&
                 board->slot.task == task;
    return right ? FOUND : CHANGED;
  }
  return ABSENT;
}

static bool slot_is_whole(const struct slip_slot* slot, uint64_t generation) {
  if (slot->names_bytes > SLIP_NAMES_BYTES) return false;
  if (slot->kind != SLIP_PREFER && slot->kind != SLIP_REQUIRE) return false;
  if (slot->names_bytes == 0 && slot->kind != SLIP_REQUIRE) return false;
  if (slot->generation != generation) return false;
  size_t from = sizeof(slot->checksum);
  size_t bytes = offsetof(struct slip_slot, names) - from + slot->names_bytes;
  return slot->checksum == slip_crc32((const uint8_t*)slot + from, bytes);
}

/* Once in a process's life: 36 characters, hexadecimal digits and dashes. */
static bool read_boot_id(uint8_t boot_id[16]) {
  char text[36];
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool whole = read(fd, text, sizeof(text)) == (ssize_t)sizeof(text);
  close(fd);
  unsigned digits = 0;
  memset(boot_id, 0, 16);
  for (size_t i = 0; whole && i < sizeof(text); i++) {
    char c = text[i];
    unsigned value;
    if (c >= '0' && c <= '9')
      value = (unsigned)(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = (unsigned)(c - 'a' + 10);
    else
      continue;
    if (digits < 32) boot_id[digits / 2] = (uint8_t)(boot_id[digits / 2] << 4 | value);
    digits++;
  }
  return digits == 32;
}

static bool read_exactly(int fd, void* buffer, size_t bytes, off_t offset) {
  return pread(fd, buffer, bytes, offset) == (ssize_t)bytes;
}

static uint64_t boottime_ns(void) {
  struct timespec now;
  /* Neither stopped by a suspend nor moved by whoever sets the clock: a lease ends when it ends. */
  if (clock_gettime(CLOCK_BOOTTIME, &now) != 0) return UINT64_MAX;
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static const uint32_t crc_table[256] = {
    0x00000000, 0x77073096, 0xee0e612c, 0x990951ba, 0x076dc419, 0x706af48f, 0xe963a535, 0x9e6495a3,
    0x0edb8832, 0x79dcb8a4, 0xe0d5e91e, 0x97d2d988, 0x09b64c2b, 0x7eb17cbd, 0xe7b82d07, 0x90bf1d91,
    0x1db71064, 0x6ab020f2, 0xf3b97148, 0x84be41de, 0x1adad47d, 0x6ddde4eb, 0xf4d4b551, 0x83d385c7,
    0x136c9856, 0x646ba8c0, 0xfd62f97a, 0x8a65c9ec, 0x14015c4f, 0x63066cd9, 0xfa0f3d63, 0x8d080df5,
    0x3b6e20c8, 0x4c69105e, 0xd56041e4, 0xa2677172, 0x3c03e4d1, 0x4b04d447, 0xd20d85fd, 0xa50ab56b,
    0x35b5a8fa, 0x42b2986c, 0xdbbbc9d6, 0xacbcf940, 0x32d86ce3, 0x45df5c75, 0xdcd60dcf, 0xabd13d59,
    0x26d930ac, 0x51de003a, 0xc8d75180, 0xbfd06116, 0x21b4f4b5, 0x56b3c423, 0xcfba9599, 0xb8bda50f,
    0x2802b89e, 0x5f058808, 0xc60cd9b2, 0xb10be924, 0x2f6f7c87, 0x58684c11, 0xc1611dab, 0xb6662d3d,
    0x76dc4190, 0x01db7106, 0x98d220bc, 0xefd5102a, 0x71b18589, 0x06b6b51f, 0x9fbfe4a5, 0xe8b8d433,
    0x7807c9a2, 0x0f00f934, 0x9609a88e, 0xe10e9818, 0x7f6a0dbb, 0x086d3d2d, 0x91646c97, 0xe6635c01,
    0x6b6b51f4, 0x1c6c6162, 0x856530d8, 0xf262004e, 0x6c0695ed, 0x1b01a57b, 0x8208f4c1, 0xf50fc457,
    0x65b0d9c6, 0x12b7e950, 0x8bbeb8ea, 0xfcb9887c, 0x62dd1ddf, 0x15da2d49, 0x8cd37cf3, 0xfbd44c65,
    0x4db26158, 0x3ab551ce, 0xa3bc0074, 0xd4bb30e2, 0x4adfa541, 0x3dd895d7, 0xa4d1c46d, 0xd3d6f4fb,
    0x4369e96a, 0x346ed9fc, 0xad678846, 0xda60b8d0, 0x44042d73, 0x33031de5, 0xaa0a4c5f, 0xdd0d7cc9,
    0x5005713c, 0x270241aa, 0xbe0b1010, 0xc90c2086, 0x5768b525, 0x206f85b3, 0xb966d409, 0xce61e49f,
    0x5edef90e, 0x29d9c998, 0xb0d09822, 0xc7d7a8b4, 0x59b33d17, 0x2eb40d81, 0xb7bd5c3b, 0xc0ba6cad,
    0xedb88320, 0x9abfb3b6, 0x03b6e20c, 0x74b1d29a, 0xead54739, 0x9dd277af, 0x04db2615, 0x73dc1683,
    0xe3630b12, 0x94643b84, 0x0d6d6a3e, 0x7a6a5aa8, 0xe40ecf0b, 0x9309ff9d, 0x0a00ae27, 0x7d079eb1,
    0xf00f9344, 0x8708a3d2, 0x1e01f268, 0x6906c2fe, 0xf762575d, 0x806567cb, 0x196c3671, 0x6e6b06e7,
    0xfed41b76, 0x89d32be0, 0x10da7a5a, 0x67dd4acc, 0xf9b9df6f, 0x8ebeeff9, 0x17b7be43, 0x60b08ed5,
    0xd6d6a3e8, 0xa1d1937e, 0x38d8c2c4, 0x4fdff252, 0xd1bb67f1, 0xa6bc5767, 0x3fb506dd, 0x48b2364b,
    0xd80d2bda, 0xaf0a1b4c, 0x36034af6, 0x41047a60, 0xdf60efc3, 0xa867df55, 0x316e8eef, 0x4669be79,
    0xcb61b38c, 0xbc66831a, 0x256fd2a0, 0x5268e236, 0xcc0c7795, 0xbb0b4703, 0x220216b9, 0x5505262f,
    0xc5ba3bbe, 0xb2bd0b28, 0x2bb45a92, 0x5cb36a04, 0xc2d7ffa7, 0xb5d0cf31, 0x2cd99e8b, 0x5bdeae1d,
    0x9b64c2b0, 0xec63f226, 0x756aa39c, 0x026d930a, 0x9c0906a9, 0xeb0e363f, 0x72076785, 0x05005713,
    0x95bf4a82, 0xe2b87a14, 0x7bb12bae, 0x0cb61b38, 0x92d28e9b, 0xe5d5be0d, 0x7cdcefb7, 0x0bdbdf21,
    0x86d3d2d4, 0xf1d4e242, 0x68ddb3f8, 0x1fda836e, 0x81be16cd, 0xf6b9265b, 0x6fb077e1, 0x18b74777,
    0x88085ae6, 0xff0f6a70, 0x66063bca, 0x11010b5c, 0x8f659eff, 0xf862ae69, 0x616bffd3, 0x166ccf45,
    0xa00ae278, 0xd70dd2ee, 0x4e048354, 0x3903b3c2, 0xa7672661, 0xd06016f7, 0x4969474d, 0x3e6e77db,
    0xaed16a4a, 0xd9d65adc, 0x40df0b66, 0x37d83bf0, 0xa9bcae53, 0xdebb9ec5, 0x47b2cf7f, 0x30b5ffe9,
    0xbdbdf21c, 0xcabac28a, 0x53b39330, 0x24b4a3a6, 0xbad03605, 0xcdd70693, 0x54de5729, 0x23d967bf,
    0xb3667a2e, 0xc4614ab8, 0x5d681b02, 0x2a6f2b94, 0xb40bbe37, 0xc30c8ea1, 0x5a05df1b, 0x2d02ef8d,
};

uint32_t slip_crc32(const void* data, size_t bytes) {
  const uint8_t* byte = data;
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < bytes; i++) crc = crc_table[(crc ^ byte[i]) & 0xff] ^ (crc >> 8);
  return ~crc;
}
