-- SPDX-License-Identifier: Apache-2.0
-- Put these lines at the end of your own job_submit.lua: your rules run first and have their say.
package.path = "/usr/share/slipstream/lua/?.lua;" .. package.path
local slipstream = require "slipstream"
slurm_job_submit, slurm_job_modify = slipstream.wrap(slurm_job_submit, slurm_job_modify)
