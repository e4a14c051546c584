/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C (Castagnoli) at memory speed: the processor's instruction on three lanes at once, whose
 * results are then joined by tables of "this checksum, so many zero bytes later". */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { POLYNOMIAL_BITS = 32, LANE_BYTES = 8192 };
static const uint32_t polynomial = 0x82f63b78; /* bits reversed, as the instruction has them */

static uint32_t bytewise[256];      /* for processors without the instruction */
static uint32_t lane_later[4][256]; /* a checksum's four bytes, LANE_BYTES of zeros later */
static int has_instruction;

static uint32_t times(const uint32_t* matrix, uint32_t vector) {
  uint32_t sum = 0;
  for (; vector; vector >>= 1, matrix++) {
    if (vector & 1) {
      sum ^= *matrix;
    }
  }
  return sum;
}

static void make_tables(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) {
      crc = crc & 1 ? (crc >> 1) ^ polynomial : crc >> 1;
    }
    bytewise[byte] = crc;
  }
  /* One zero bit is a matrix; squared three times it is a byte of zeros, then two, four, ... */
  uint32_t operator[POLYNOMIAL_BITS] = {polynomial};
  for (int bit = 1; bit < POLYNOMIAL_BITS; bit++) {
    operator[bit] = 1U << (bit - 1);
  }
  for (int zero_bits = 1; zero_bits < LANE_BYTES * 8; zero_bits *= 2) {
    uint32_t squared[POLYNOMIAL_BITS];
    for (int bit = 0; bit < POLYNOMIAL_BITS; bit++) {
      squared[bit] = times(operator, operator[bit]);
    }
    memcpy(operator, squared, sizeof squared);
  }
  for (uint32_t byte = 0; byte < 256; byte++) {
    for (int place = 0; place < 4; place++) {
      lane_later[place][byte] = times(operator, byte << (8 * place));
    }
  }
}

static uint32_t slowly(uint32_t crc, const uint8_t* bytes, size_t count) {
  for (; count; count--) {
    crc = bytewise[(crc ^ *bytes++) & 0xff] ^ (crc >> 8);
  }
  return crc;
}

#ifdef __x86_64__
static uint64_t a_lane_later(uint64_t crc) {
  return lane_later[0][crc & 0xff] ^ lane_later[1][(crc >> 8) & 0xff] ^
         lane_later[2][(crc >> 16) & 0xff] ^ lane_later[3][(crc >> 24) & 0xff];
}

static uint64_t word_at(const uint8_t* bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) static uint32_t quickly(uint32_t start, const uint8_t* bytes,
                                                          size_t count) {
  uint64_t crc = start;
  for (; count >= 3 * LANE_BYTES; count -= 3 * LANE_BYTES, bytes += 3 * LANE_BYTES) {
    uint64_t second = 0, third = 0;
    for (size_t at = 0; at < LANE_BYTES; at += 8) {
      crc = __builtin_ia32_crc32di(crc, word_at(bytes + at));
      second = __builtin_ia32_crc32di(second, word_at(bytes + LANE_BYTES + at));
      third = __builtin_ia32_crc32di(third, word_at(bytes + 2 * LANE_BYTES + at));
    }
    crc = a_lane_later(a_lane_later(crc) ^ second) ^ third;
  }
  for (; count >= 8; count -= 8, bytes += 8) {
    crc = __builtin_ia32_crc32di(crc, word_at(bytes));
  }
  return slowly((uint32_t)crc, bytes, count);
}
#endif

__attribute__((constructor)) static void prepare(void) {
  make_tables();
#ifdef __x86_64__
  __builtin_cpu_init();
  has_instruction = __builtin_cpu_supports("sse4.2");
#endif
}

/* The checksum of some bytes, going on from that of the bytes before them (0 at the beginning). */
uint32_t slip_crc32c(uint32_t before, const void* bytes, size_t count) {
#ifdef __x86_64__
  if (has_instruction) {
    return ~quickly(~before, bytes, count);
  }
#endif
  return ~slowly(~before, bytes, count);
}

/* The same without the instruction: what the self-test compares it with. */
uint32_t slip_crc32c_slowly(uint32_t before, const void* bytes, size_t count) {
  return ~slowly(~before, bytes, count);
}
