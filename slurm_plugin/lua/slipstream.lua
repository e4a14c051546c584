-- SPDX-License-Identifier: Apache-2.0
-- Slipstream inside job_submit.lua: gives a flagged job its class, its role, its seats, its marker.
--
-- At the end of a site's own job_submit.lua (examples/job_submit.lua):
--
--   local slipstream = require "slipstream"
--   slurm_job_submit, slurm_job_modify = slipstream.wrap(slurm_job_submit, slurm_job_modify)
--
-- A job without a flag is not touched. Only bad user input is refused; a mistake of ours leaves
-- the job as it came.
local daemon = require "slipstream.daemon"
local flags = require "slipstream.flags"
local marker = require "slipstream.marker"
local planning = require "slipstream.plan"
local requests = require "slipstream.request"
local switch = require "slipstream.switch"
local tres = require "slipstream.tres"

local M = {}

local DEFAULT_RUN_DIR = "/run/slipstream"

local settings = {
  -- Host memory a guest needs on top of its own, for each GPU: parked state and checkpoints.
  guest_memory_per_gpu_mib = 4096,
  -- DefMemPerCPU of slurm.conf, which Lua cannot see; 0: jobs without --mem are left as they are.
  default_memory_per_cpu_mib = 0,
  -- Class of jobs without a flag: "" leaves them alone. By partition: { debug = "opportunistic" }.
  default_class = "",
  class_of_partition = {},
  disable_file = switch.DEFAULT_FILE,
  -- Who may give a guest real GPUs afterwards: root, and SlurmUser where that is not root.
  trusted_uids = { 0 },
}

local function log_error(...) slurm.log_error("%s", string.format(...)) end

-- A site's numbers. What is not understood is said in the log and left at its default: a slip of
-- the pen must not stop slurmctld.
function M.configure(given)
  for key, value in pairs(given) do
    if settings[key] == nil or type(settings[key]) ~= type(value) then
      local known = {}
      for name, default in pairs(settings) do
        known[#known + 1] = name .. " (" .. type(default) .. ")"
      end
      table.sort(known)
      log_error("slipstream: unknown setting %s=%s; known: %s", tostring(key), tostring(value),
        table.concat(known, ", "))
    else
      settings[key] = value
    end
  end
end

local function class_of(found, request)
  if found.class then return found.class end
  if next(found) ~= nil then return "guaranteed" end -- some other flag: ours, and an owner
  local class = settings.class_of_partition[request.partition or ""] or settings.default_class
  -- srun and salloc need the client's help to be guests, and the client did not know.
  if class == "opportunistic" and not request.script then return "" end
  return class
end

-- A request as this Slurm wants it, gres:gpu:1 or gres/gpu:1: it spells what is set as `gres`.
local function spelled(job_desc, bare)
  local before = job_desc.tres_per_node
  job_desc.gres = bare
  local text = job_desc.tres_per_node
  job_desc.tres_per_node = before or ""
  return text
end

local function apply(job_desc, plan)
  local before, done = { tres_per_node = job_desc.tres_per_node }, {}
  for _, change in ipairs(plan.changes) do before[change[1]] = job_desc[change[1]] end
  local ok, why = pcall(function()
    for _, change in ipairs(plan.changes) do
      local field, value = change[1], change[2]
      if change.bare then
        done[#done + 1] = "tres_per_node"
        value = spelled(job_desc, value)
      end
      done[#done + 1] = field
      job_desc[field] = value
    end
  end)
  if ok then return end
  for _, field in ipairs(done) do
    local old = before[field]
    pcall(function() job_desc[field] = old == nil and "" or old end)
  end
  error(why, 0)
end

local function carry(job_desc, request, plan)
  -- Only a batch job's environment passes through slurmctld; the client carries the others'.
  if request.script then job_desc.environment[marker.CARRIER] = marker.carrier(plan) end
end

-- Without the select wrapper a job must not start before the daemon has seen it in the queue. The
-- start is near: a daemon that dies now costs the job these seconds.
local function hold(job_desc, request, answer)
  if not (answer and answer.hold_s and request.script) then return end
  if (tonumber(job_desc.begin_time) or 0) > os.time() then return end -- its user's own wish
  local until_s = os.time() + answer.hold_s
  local comment = marker.held(job_desc.admin_comment, until_s)
  if not comment then return end
  job_desc.begin_time = until_s
  job_desc.admin_comment = comment
end

local function say(plan, begun_s, answer, why)
  if answer and answer.message then
    plan.notes[#plan.notes + 1] = answer.message
  end
  for _, note in ipairs(plan.notes) do slurm.log_user("%s", "[slipstream] " .. note) end
  local line = "slipstream: token=%s class=%s role=%s gpus=%s:%d took_us=%.0f daemon: %s"
  local took_us = (daemon.now_s() - begun_s) * 1e6
  slurm.log_info("%s", line:format(
    plan.token, plan.class, plan.role, plan.per, plan.count, took_us, why or "answered"))
end

local function tell(job_desc, request, plan)
  local now_s = os.time()
  if daemon.rests(now_s) then return nil, "resting" end
  requests.complete(request, job_desc)
  local folder = os.getenv("SLIPSTREAM_RUN_DIR") or DEFAULT_RUN_DIR
  local log = function(text) slurm.log_info("%s", text) end
  return daemon.tell(folder .. "/submit.sock", request, plan, log, now_s)
end

local function leave_alone(why)
  slurm.log_info("%s", "slipstream: job left to Slurm: " .. why)
end

-- The changes of a job, or nil where it is to be left as it is. Changes nothing.
local function plan_of(job_desc, found)
  local request, why = requests.read(job_desc)
  if not request then return leave_alone(why .. ", which is not understood") end
  found.class = class_of(found, request)
  if found.class == "" then return nil end
  if request.het_offset then return leave_alone("part of a heterogeneous job") end
  if switch.is_off(settings.disable_file) then
    return leave_alone(settings.disable_file .. " is there")
  end
  local memory = settings.default_memory_per_cpu_mib
  local plan = planning.make(request, found, {
    guest_memory_per_gpu_mib = settings.guest_memory_per_gpu_mib,
    default_memory_per_cpu_mib = memory > 0 and memory or nil,
  }, marker.token())
  return plan, request
end

-- For slurm_job_submit.
function M.submit(job_desc)
  local _, begun_s = pcall(daemon.now_s) -- of all we do, for the log
  local ok, found, refusal = pcall(function()
    return flags.from_environment(requests.spank_lines(job_desc))
  end)
  if not ok then
    log_error("slipstream: %s", tostring(found))
    return slurm.SUCCESS
  end
  if not found then
    slurm.log_user("%s", refusal)
    return slurm.ERROR
  end
  local good, why = pcall(function()
    local plan, request = plan_of(job_desc, found)
    if not plan then return end
    local answer, why
    if plan.leaves_gpus_to_us then -- one question, then one change: never half of each
      answer, why = tell(job_desc, request, plan)
      planning.sized(plan, answer and answer.gpus)
    end
    apply(job_desc, plan)
    pcall(carry, job_desc, request, plan)
    if not plan.leaves_gpus_to_us then answer, why = tell(job_desc, request, plan) end
    pcall(hold, job_desc, request, answer)
    say(plan, begun_s, answer, why)
  end)
  if not good then log_error("slipstream: %s", tostring(why)) end
  return slurm.SUCCESS
end

local function is_trusted(uid)
  for _, trusted in ipairs(settings.trusted_uids) do
    if uid == trusted then return true end
  end
  return false
end

-- For slurm_job_modify: a guest cannot ask for real GPUs afterwards. Root and SlurmUser can: that
-- is how a job is moved and upgraded.
function M.modify(job_desc, job_rec, modify_uid)
  local ok, why = pcall(function()
    local role = marker.value(job_rec.admin_comment, "role")
    if is_trusted(modify_uid) or role ~= "guest" then return end
    for _, field in ipairs(tres.FIELDS) do
      local found = tres.read(job_desc[field])
      if found and found.gpus > 0 then job_desc[field] = tres.swap(found) end
    end
  end)
  if not ok then log_error("slipstream: %s", tostring(why)) end
  return slurm.SUCCESS
end

-- The site's own functions (nil where it has none), with ours after them.
function M.wrap(site_submit, site_modify)
  local function submit(job_desc, partitions, submit_uid)
    local rc = site_submit and site_submit(job_desc, partitions, submit_uid)
    if rc ~= nil and rc ~= slurm.SUCCESS then return rc end
    return M.submit(job_desc)
  end
  local function modify(job_desc, job_rec, partitions, modify_uid)
    local rc = site_modify and site_modify(job_desc, job_rec, partitions, modify_uid)
    if rc ~= nil and rc ~= slurm.SUCCESS then return rc end
    return M.modify(job_desc, job_rec, modify_uid)
  end
  return submit, modify
end

return M
