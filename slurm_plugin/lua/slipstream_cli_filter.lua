-- SPDX-License-Identifier: Apache-2.0
-- Slipstream inside cli_filter.lua: lets guests be started by srun and salloc.
--
-- Such a client asks for the job and then again for its step, with the options it has kept: a
-- guest's wish for gres/gpu must be gone before the first. sbatch needs none of this, and must not
-- wait for it: the rest is loaded only for the other two.
local M = { disable_file = nil } -- the kill switch; nil: where it is everywhere

-- What to tell the user instead of going on; nil for nearly everybody.
function M.pre_submit(options)
  if options.type ~= "srun" and options.type ~= "salloc" then return nil end
  return require("slipstream.client").pre_submit(options, M.disable_file)
end

local function succeed() return slurm.SUCCESS end

-- The site's own functions (nil where it has none), with ours after its pre_submit.
function M.wrap(site_setup, site_pre_submit, site_post_submit)
  local function pre_submit(options, offset)
    local rc = site_pre_submit and site_pre_submit(options, offset)
    if rc ~= nil and rc ~= slurm.SUCCESS then return rc end
    local ok, why = pcall(M.pre_submit, options)
    if ok and why then
      io.stderr:write(why, "\n")
      return slurm.ERROR
    end
    if not ok then slurm.log_debug("%s", "slipstream: " .. tostring(why)) end
    return slurm.SUCCESS
  end
  return site_setup or succeed, pre_submit, site_post_submit or succeed
end

return M
