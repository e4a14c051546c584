-- SPDX-License-Identifier: Apache-2.0
-- Put these lines at the end of your own cli_filter.lua: your rules run first and have their say.
package.path = "/usr/share/slipstream/lua/?.lua;" .. package.path
local slipstream = require "slipstream_cli_filter"
slurm_cli_setup_defaults, slurm_cli_pre_submit, slurm_cli_post_submit =
  slipstream.wrap(slurm_cli_setup_defaults, slurm_cli_pre_submit, slurm_cli_post_submit)
