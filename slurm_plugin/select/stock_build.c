/* SPDX-License-Identifier: Apache-2.0 */
#include "stock_build.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct search {
  uintptr_t address;
  const char* build_id;
  bool same;
};

static int look_at_object(struct dl_phdr_info* object, size_t size, void* context);
static bool note_says(const uint8_t* at, size_t bytes, const char* build_id);
static size_t padded(size_t bytes) { return (bytes + 3) & ~(size_t)3; }

bool slip_has_build_id(const void* address, const char* build_id) {
  struct search search = {(uintptr_t)address, build_id, false};
  dl_iterate_phdr(look_at_object, &search);
  return search.same;
}

static int look_at_object(struct dl_phdr_info* object, size_t size, void* context) {
  struct search* search = context;
  (void)size;
  bool here = false;
  for (unsigned i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    uintptr_t begin = object->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_LOAD && search->address >= begin &&
        search->address < begin + part->p_memsz)
      here = true;
  }
  if (!here) return 0;
  for (unsigned i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    if (part->p_type == PT_NOTE && note_says((const uint8_t*)(object->dlpi_addr + part->p_vaddr),
                                             part->p_memsz, search->build_id))
      search->same = true;
  }
  return 1;
}

static bool note_says(const uint8_t* at, size_t bytes, const char* build_id) {
  ElfW(Nhdr) note;
  while (bytes >= sizeof(note)) {
    memcpy(&note, at, sizeof(note));
    size_t name = padded(note.n_namesz), value = padded(note.n_descsz);
    if (name + value > bytes - sizeof(note)) return false;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        memcmp(at + sizeof(note), "GNU", 4) == 0 && strlen(build_id) == 2 * note.n_descsz) {
      for (size_t i = 0; i < note.n_descsz; i++) {
        char digits[3];
        snprintf(digits, sizeof(digits), "%02x", at[sizeof(note) + name + i]);
        if (memcmp(digits, build_id + 2 * i, 2) != 0) return false;
      }
      return true;
    }
    at += sizeof(note) + name + value;
    bytes -= sizeof(note) + name + value;
  }
  return false;
}
