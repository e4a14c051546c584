-- SPDX-License-Identifier: Apache-2.0
-- What becomes of a job: its class, its role and every change to its job_desc. Pure.
--
-- A plan is made whole before anything is changed, so that a mistake leaves a job as it was.
local marker = require "slipstream.marker"
local tres = require "slipstream.tres"

local M = {}

local NO_VAL16 = 65534
-- Without a daemon's word only this class gives its GPUs away.
local GUEST_CLASSES = { opportunistic = true }

local function ceil_div(a, b) return math.floor((a + b - 1) / b) end

local function change(plan, field, value) plan.changes[#plan.changes + 1] = { field, value } end

-- A request that nobody has spelt yet: as --gres has it, without what each release puts before it.
local function ask_for(plan, field, request)
  plan.changes[#plan.changes + 1] = { field, request, bare = true }
end

local function swap_gpus(plan, request)
  for _, field in ipairs(tres.FIELDS) do
    local found = request.tres[field]
    if found and found.gpus > 0 then change(plan, field, tres.swap(found)) end
  end
  if request.implied then
    ask_for(plan, "tres_per_job", tres.seats(request.count))
  end
end

-- These three would hand out real GPUs, or be refused, beside slots.
local function close_leaks(plan, request)
  if request.shared == 0 or request.shared == 2 or request.shared == 3 then
    change(plan, "shared", NO_VAL16)
    plan.notes[#plan.notes + 1] = "--exclusive is ignored for a guest"
  end
  if request.ntasks_per_gpu then
    change(plan, "ntasks_per_tres", NO_VAL16)
    if not request.num_tasks then
      change(plan, "num_tasks", request.ntasks_per_gpu * request.gpus_total)
    end
  end
  if request.tres_bind then change(plan, "tres_bind", "") end
  if request.tres_freq then change(plan, "tres_freq", "") end
end

local function turn_cpus_per_gpu(plan, request)
  if not request.cpus_per_gpu then return end
  change(plan, "cpus_per_tres", "")
  local cpus = math.max(request.cpus_per_gpu * request.gpus_total, 1)
  request.cpus = cpus
  change(plan, "cpus_per_task", ceil_div(cpus, request.tasks))
  change(plan, "min_cpus", cpus)
end

-- What a parked guest keeps in host memory is added to what it asked for. Last of all changes:
-- memory that was not asked for cannot be un-asked again.
local function add_memory(plan, request, settings)
  local share = settings.guest_memory_per_gpu_mib
  if request.memory_per_gpu_mib then
    change(plan, "mem_per_tres", "")
    local per_node = (request.memory_per_gpu_mib + share) * request.gpus_per_node
    return change(plan, "min_mem_per_node", per_node)
  end
  if request.memory_per_node_mib then
    if request.memory_per_node_mib == 0 then return end -- all of the node's
    local per_node = request.memory_per_node_mib + share * request.gpus_per_node
    return change(plan, "min_mem_per_node", per_node)
  end
  local per_cpu = request.memory_per_cpu_mib or settings.default_memory_per_cpu_mib
  if not per_cpu or share == 0 then return end -- Slurm's default holds, and we do not know it
  change(plan, "min_mem_per_cpu", per_cpu + ceil_div(share * request.gpus_total, request.cpus))
end

-- Whether GPUs alone could be swapped for seats later, while the job waits.
local function may_be_guest(request)
  local whole = request.shared == 0 or request.shared == 2 or request.shared == 3
  return request.script and not (whole or request.ntasks_per_gpu or request.cpus_per_gpu
    or request.memory_per_gpu_mib or request.tres_bind or request.tres_freq)
end

-- GPUs for a job that left their number to us. An owner's: what `auto` is at submission.
local function give(plan, count)
  plan.per, plan.count = "node", count
  plan.notes = { ("%d GPU%s%s: no --gres asked for any"):format(
    count, count == 1 and "" or "s", plan.nodes > 1 and " of each node" or "") }
  plan.changes = {}
  ask_for(plan, "tres_per_node", tres.with_gpus(plan.tres_per_node, count))
  change(plan, "admin_comment", marker.comment(plan, plan.comment_before))
end

-- The same plan with so many GPUs of each node, as the daemon says. Nothing was changed before.
function M.sized(plan, count)
  if plan.leaves_gpus_to_us and count then give(plan, count) end
end

-- `flags` as flags.from_environment gives them, with the class settled.
function M.make(request, flags, settings, token)
  -- Whoever asks for seats by name is a guest, of whatever class.
  local guest = GUEST_CLASSES[flags.class] == true or request.slots > 0 and request.gpus == 0
  local plan = {
    token = token,
    flags = flags,
    class = flags.class,
    role = guest and "guest" or "owner",
    per = request.per or "node",
    count = request.count or 0,
    tasks_per_gpu = request.ntasks_per_gpu,
    changes = {},
    notes = {},
  }
  plan.may_be_guest = flags.class == "auto" and not guest and may_be_guest(request)
  if guest then
    swap_gpus(plan, request)
    close_leaks(plan, request)
    turn_cpus_per_gpu(plan, request)
  end
  if flags.class == "auto" and request.script and not request.per then
    -- Without a daemon's word: one.
    plan.leaves_gpus_to_us, plan.nodes = true, request.nodes
    plan.tres_per_node, plan.comment_before = request.tres_per_node, request.admin_comment
    give(plan, 1)
    return plan
  end
  change(plan, "admin_comment", marker.comment(plan, request.admin_comment))
  if guest and request.gpus_total > 0 then add_memory(plan, request, settings) end
  return plan
end

return M
