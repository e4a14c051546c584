/* SPDX-License-Identifier: Apache-2.0
 *
 * Is the loaded stock plugin the very one this wrapper was built beside? A distribution may change
 * Slurm's structures in a security update without changing the version that Slurm compares, but
 * every build has a build id of its own.
 */
#ifndef SLIPSTREAM_STOCK_BUILD_H
#define SLIPSTREAM_STOCK_BUILD_H

#include <stdbool.h>

/* Whether the loaded object that holds this address has this build id, in hexadecimal digits. */
bool slip_has_build_id(const void* address, const char* build_id);

#endif
