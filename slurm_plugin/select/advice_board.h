/* SPDX-License-Identifier: Apache-2.0
 *
 * The advice board as a reader sees it: one file, fixed layout, little-endian.
 *
 *   header   4096 bytes
 *   buckets  bucket_count x 64 entries of 16 bytes; a key lives in its own bucket and nowhere else
 *   slots    slot_count x 512 bytes: a record, with its checksum
 *
 * The writer is slipstream.slurm_plugin.advice_board; docs/advice-board.md tells the whole story.
 * Nothing here allocates, locks, logs or trusts a byte of the file. The file is read by pread, not
 * mapped: a mapped file that somebody truncates kills its reader with SIGBUS, and this reader lives
 * in slurmctld.
 */
#ifndef SLIPSTREAM_ADVICE_BOARD_H
#define SLIPSTREAM_ADVICE_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SLIP_MAGIC "SLIPADV1"
#define SLIP_VERSION 1u
#define SLIP_HEADER_BYTES 4096u
#define SLIP_BUCKET_ENTRIES 64u
#define SLIP_SLOT_BYTES 512u
#define SLIP_NAMES_BYTES 464u
#define SLIP_MOST_BUCKETS 65536u
#define SLIP_MOST_SLOTS 1048576u
#define SLIP_ANY_TASK UINT32_MAX
#define SLIP_MOST_NAMES 65536u
#define SLIP_NAME_BYTES 256u
#define SLIP_SIGN_SUFFIX ".reader"

/* No advice holds longer than this, whatever a record says: expiry is the fail-open. */
#define SLIP_LONGEST_S 3600u
/* How soon a reader notices that the file was replaced, removed or overwritten. */
#define SLIP_LOOK_EVERY_NS 10000000ull

enum slip_kind { SLIP_NONE = 0, SLIP_PREFER = 1, SLIP_REQUIRE = 2 };

struct slip_header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint32_t bucket_count;
  uint32_t bucket_entries;
  uint32_t slot_count;
  uint32_t slot_bytes;
  uint64_t file_bytes;
  uint64_t generation;
  uint8_t boot_id[16];
  uint32_t reserved;
  uint32_t checksum; /* CRC-32 of all before it */
};

struct slip_entry {
  uint64_t token;
  uint32_t task;
  uint32_t slot_plus_one; /* 0: the entry is free. Written last, cleared first. */
};

struct slip_slot {
  uint32_t checksum; /* CRC-32 of all behind it, up to the end of the names */
  uint16_t names_bytes;
  uint8_t kind;
  uint8_t reserved;
  uint64_t token;
  uint32_t task;
  uint32_t reserved2;
  uint64_t generation; /* of the file it was written for */
  uint64_t expires_boot_s;
  uint64_t serial;
  char names[SLIP_NAMES_BYTES]; /* n[1-4,7],gpu03; none with SLIP_REQUIRE: nowhere for now */
};

/* One reader's state; fill it with slip_board_init. Not for two threads at a time. */
struct slip_board {
  char path[4096];
  int fd;
  dev_t device;
  ino_t inode;
  uint64_t looked_ns;
  bool ever_looked;
  int sign_fd; /* the sign that this reader is at work: a shared lock, as long as it is open */
  dev_t sign_device;
  ino_t sign_inode;
  uint64_t signed_ns;
  bool boot_id_known;
  uint8_t boot_id[16];
  struct slip_header header;
  struct slip_entry bucket[SLIP_BUCKET_ENTRIES];
  struct slip_slot slot;
};

/* Begin with nothing open. False if the path is too long: then every lookup finds nothing. */
bool slip_board_init(struct slip_board* board, const char* path);

/* The advice for a job, if there is any that holds now. `task` is SLIP_ANY_TASK for a job that is
 * no array task; a task without a record of its own is given its array's. Its names are then in
 * board->slot until the next call. */
enum slip_kind slip_board_find(struct slip_board* board, uint64_t token, uint32_t task);

/* Show whoever writes the board that it is read: hold a shared lock on <path>.reader, which
 * is made if it is not there. The kernel takes the lock back when this process ends, however it
 * ends. */
void slip_board_sign(struct slip_board* board);

/* Close what is open of the board. */
void slip_board_close(struct slip_board* board);

/* Call `each` with every name of a list such as n[1-4,7],gpu03. The number of names, or -1 for a
 * list that is none; `each` may have been called by then. */
long slip_names_each(const char* list, size_t bytes, void (*each)(const char* name, void* context),
                     void* context);

/* The token in a job's marker, [slipstream v=1 token=<16 hex digits> …]: the last marker counts.
 * False without one. */
bool slip_marker_token(const char* comment, uint64_t* token);

uint32_t slip_crc32(const void* data, size_t bytes);
uint32_t slip_bucket_of(uint64_t token, uint32_t task, uint32_t bucket_count);

#endif
