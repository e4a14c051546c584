/* SPDX-License-Identifier: Apache-2.0 */
/* A forest of regression trees over flat arrays: the sum of its trees' leaves, label by label. */
#include <stdint.h>

enum { ABREAST = 8 }; /* trees walked together: one waits for memory while the others go on */

struct node {
  double value;    /* what the feature is compared with, or what a leaf says */
  int32_t right;   /* the left child is the next node */
  int32_t feature; /* -1: a leaf */
};

/* Trees side by side, from their roots to their leaves. Where to go is computed, not branched on:
 * a branch in a tree is guessed wrong every other time. */
static void walk(const struct node* nodes, const float* row, int32_t* at) {
  int32_t going;
  do {
    going = 0;
    for (int32_t lane = 0; lane < ABREAST; lane++) {
      const struct node* node = nodes + at[lane];
      int32_t inner = -(node->feature >= 0); /* all bits, or none */
      int32_t left = -((double)row[node->feature & inner] <= node->value);
      int32_t next = ((at[lane] + 1) & left) | (node->right & ~left);
      at[lane] = (next & inner) | (at[lane] & ~inner);
      going |= inner;
    }
  } while (going);
}

/*
 * Label l has the trees first[l] to first[l + 1] - 1. A child always comes after its parent (the
 * reader of model files has checked it), so that every walk ends.
 */
void slip_forest(const struct node* nodes, const int32_t* roots, const int32_t* first,
                 int32_t labels, const float* row, double* sums) {
  int32_t at[ABREAST];
  for (int32_t label = 0; label < labels; label++) {
    double sum = 0.0;
    for (int32_t tree = first[label]; tree < first[label + 1]; tree += ABREAST) {
      int32_t lanes = first[label + 1] - tree;
      lanes = lanes < ABREAST ? lanes : ABREAST;
      for (int32_t lane = 0; lane < ABREAST; lane++)
        at[lane] = roots[tree + (lane < lanes ? lane : 0)];
      walk(nodes, row, at);
      for (int32_t lane = 0; lane < lanes; lane++) sum += nodes[at[lane]].value;
    }
    sums[label] = sum;
  }
}
