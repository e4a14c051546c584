-- SPDX-License-Identifier: Apache-2.0
-- What a job asks for, read once from Slurm's job_desc into a plain table. Changes nothing.
local tres = require "slipstream.tres"

local M = {}

local NO_VAL, NO_VAL16 = 4294967294, 65534
local MOST_WORDS, MOST_WORD = 128, 128
local GPU_FIELDS = {
  { per = "node", field = "tres_per_node" },
  { per = "task", field = "tres_per_task" },
  { per = "socket", field = "tres_per_socket" },
  { per = "job", field = "tres_per_job" },
}

local function index(job_desc, field) return job_desc[field] end

-- For a Slurm that raises where it has no such field: it is one nobody has set.
local function index_with_care(job_desc, field)
  local ok, value = pcall(index, job_desc, field)
  if ok then return value end
  return nil
end

local get = index

-- `instead`: the name of the same field where a Slurm has not the first.
local function number(job_desc, field, unset, instead)
  local value = tonumber(get(job_desc, field))
  if value == nil and instead then value = tonumber(get(job_desc, instead)) end
  if value == nil or value >= unset then return nil end
  return value
end

local function text(job_desc, field)
  local value = get(job_desc, field)
  if type(value) ~= "string" or value == "" then return nil end
  return value
end

-- The script with its arguments, or the command of srun. Slurm counts them from 0.
local function words(job_desc, field)
  local found, value = {}, get(job_desc, field)
  if type(value) ~= "table" then return found end
  local at = value[0] ~= nil and 0 or 1
  while value[at] ~= nil and #found < MOST_WORDS do
    found[#found + 1] = tostring(value[at]):sub(1, MOST_WORD)
    at = at + 1
  end
  return found
end

local function read_gpus(request, job_desc)
  request.tres, request.gpus, request.slots = {}, 0, 0
  for _, form in ipairs(GPU_FIELDS) do
    local asked = text(job_desc, form.field)
    local found, part = nil, nil
    if asked then
      found, part = tres.read(asked)
      if not found then return ("%s has %q"):format(form.field, part) end
    end
    if found and found.asks then
      request.tres[form.field] = found
      request.gpus, request.slots = request.gpus + found.gpus, request.slots + found.slots
      if not request.per then
        request.per, request.count = form.per, found.gpus + found.slots
      end
    end
  end
  return nil
end

local function ceil_div(a, b) return math.floor((a + b - 1) / b) end

-- Nodes, tasks and GPUs as far as they are known before a job is placed.
local function work_out_sizes(request)
  local nodes = math.max(request.min_nodes or 1, 1)
  local tasks = request.num_tasks or nodes * (request.ntasks_per_node or 1)
  local sockets = nodes * (request.sockets_per_node or 1)
  request.nodes, request.tasks = nodes, tasks
  if request.ntasks_per_gpu and not request.per then
    -- Slurm finds the GPUs from the tasks: so do we.
    request.per, request.count = "job", ceil_div(tasks, request.ntasks_per_gpu)
    request.implied = true
  end
  local units = { node = nodes, task = tasks, socket = sockets, job = 1 }
  request.gpus_total = (request.count or 0) * (units[request.per] or 0)
  request.gpus_per_node = ceil_div(request.gpus_total, nodes)
  request.cpus = math.max(tasks * (request.cpus_per_task or 1), request.min_cpus or 1)
end

local function read(job_desc)
  local request = {
    min_nodes = number(job_desc, "min_nodes", NO_VAL),
    num_tasks = number(job_desc, "num_tasks", NO_VAL),
    ntasks_per_node = number(job_desc, "ntasks_per_node", NO_VAL16),
    ntasks_per_gpu = number(job_desc, "ntasks_per_tres", NO_VAL16, "ntasks_per_gpu"),
    sockets_per_node = number(job_desc, "sockets_per_node", NO_VAL16),
    cpus_per_task = number(job_desc, "cpus_per_task", NO_VAL16),
    min_cpus = number(job_desc, "min_cpus", NO_VAL),
    cpus_per_gpu = tres.per_gpu(text(job_desc, "cpus_per_tres")),
    memory_per_gpu_mib = tres.per_gpu(text(job_desc, "mem_per_tres")),
    memory_per_node_mib = number(job_desc, "min_mem_per_node", 2 ^ 62),
    memory_per_cpu_mib = number(job_desc, "min_mem_per_cpu", 2 ^ 62),
    shared = number(job_desc, "shared", NO_VAL16),
    het_offset = number(job_desc, "het_job_offset", NO_VAL),
    tres_per_node = text(job_desc, "tres_per_node"),
    tres_bind = text(job_desc, "tres_bind"),
    tres_freq = text(job_desc, "tres_freq"),
    admin_comment = text(job_desc, "admin_comment"),
    partition = text(job_desc, "partition"),
    script = text(job_desc, "script"),
  }
  local why = read_gpus(request, job_desc)
  if why then return nil, why end
  work_out_sizes(request)
  return request
end

-- The request; or nil and what of it is not understood.
function M.read(job_desc)
  local ok, request, why = pcall(read, job_desc)
  if ok then return request, why end
  get = index_with_care -- from now on: the next job has the same fields
  return read(job_desc)
end

local function complete(request, job_desc)
  request.max_nodes = number(job_desc, "max_nodes", NO_VAL)
  request.time_limit_min = number(job_desc, "time_limit", NO_VAL)
  request.user_id = number(job_desc, "user_id", NO_VAL)
  request.array = text(job_desc, "array_inx")
  request.account = text(job_desc, "account")
  request.qos = text(job_desc, "qos")
  request.name = text(job_desc, "name")
  request.argv = words(job_desc, "argv")
  request.work_dir = text(job_desc, "work_dir")
end

-- Adds what only the daemon is told. No change of ours touches these fields.
function M.complete(request, job_desc)
  if pcall(complete, request, job_desc) then return end
  get = index_with_care
  complete(request, job_desc)
end

-- The lines our SPANK plugin sent along: the way that srun, salloc and --export=NONE share.
function M.spank_lines(job_desc)
  local lines, size = {}, tonumber(index_with_care(job_desc, "spank_job_env_size")) or 0
  local sent = size > 0 and index_with_care(job_desc, "spank_job_env") or {}
  for at = 0, size - 1 do
    if type(sent[at]) == "string" then lines[#lines + 1] = sent[at] end
  end
  return lines
end

return M
