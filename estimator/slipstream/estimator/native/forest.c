/* SPDX-License-Identifier: Apache-2.0 */
/* A forest of regression trees over flat arrays: the sum of its trees' leaves, label by label. */
#include <stdint.h>

struct node {
  double value;    /* what the feature is compared with, or what a leaf says */
  int32_t right;   /* the left child is the next node */
  int32_t feature; /* -1: a leaf */
};

/*
 * Label l has the trees first[l] to first[l + 1] - 1. A child always comes after its parent (the
 * reader of model files has checked it), so that every walk ends.
 */
void slip_forest(const struct node* nodes, const int32_t* roots, const int32_t* first,
                 int32_t labels, const float* row, double* sums) {
  for (int32_t label = 0; label < labels; label++) {
    double sum = 0.0;
    for (int32_t tree = first[label]; tree < first[label + 1]; tree++) {
      const struct node* at = nodes + roots[tree];
      while (at->feature >= 0)
        at = (double)row[at->feature] <= at->value ? at + 1 : nodes + at->right;
      sum += at->value;
    }
    sums[label] = sum;
  }
}
