-- SPDX-License-Identifier: Apache-2.0
-- What cli_filter does for srun and salloc: a guest's wish for gres/gpu is gone before the client
-- asks for the job, and again before it asks for a step. Loaded for them only.
local flags = require "slipstream.flags"
local marker = require "slipstream.marker"
local switch = require "slipstream.switch"
local tres = require "slipstream.tres"

local M = {}

local FORMS = {
  { per = "task", option = "gpus-per-task" },
  { per = "socket", option = "gpus-per-socket" },
  { per = "node", option = "gpus-per-node" },
  { per = "job", option = "gpus" },
}

-- No cli_filter can take these back, and Slurm refuses them without --gpus.
local IRREVOCABLE = {
  { option = "cpus-per-gpu", instead = "--cpus-per-task" },
  { option = "mem-per-gpu", instead = "--mem" },
  { option = "ntasks-per-gpu", instead = "--ntasks" },
}

local function ceil_div(a, b) return math.floor((a + b - 1) / b) end

-- "2", "a100:2", "a100", "a100:1,v100:1": how many; nil for an option that is not set.
local function count_of(text)
  if not text or text == "" or text == "unset" then return nil end
  local count = 0
  for part in text:gmatch("[^,]+") do
    count = count + (tonumber(part:match("^(%d+)$") or part:match(":(%d+)$")) or 1)
  end
  return count
end

local function positive(text)
  local number = tonumber(text)
  return number and number > 0 and number or nil
end

local function class_of(options)
  local found = options.spank and options.spank.slipstream
  local class = found and found["slip-class"] or os.getenv("SLIPSTREAM_CLASS")
  if class == nil or class == "" or class == "unset" then return nil end
  return flags.read("SLIPSTREAM_CLASS", class)
end

-- How the GPUs asked for are counted, and how many seats that is on one node.
local function read_gpus(options)
  local gres = tres.read(options.gres)
  if not gres then return nil end
  local nodes = positive((options.nodes or ""):match("^(%d+)")) or 1
  local tasks = positive(options.ntasks) or nodes
  local units = {
    node = 1,
    task = positive(options["ntasks-per-node"]) or ceil_div(tasks, nodes),
    socket = positive(options["sockets-per-node"]) or 1,
    job = 1 / nodes,
  }
  local found = { gres = gres, seats = gres.gpus + gres.slots, per = "node" }
  found.count = found.seats
  for _, form in ipairs(FORMS) do
    local count = count_of(options[form.option])
    if count then
      found.per, found.count = form.per, count
      found.seats = math.max(found.seats, math.ceil(count * units[form.per]))
    end
  end
  return found
end

local function drop_gpu_options(options)
  for _, form in ipairs(FORMS) do
    if count_of(options[form.option]) then options[form.option] = "" end
  end
end

local function set_carrier(text)
  local ok, stdlib = pcall(require, "posix.stdlib")
  if ok then stdlib.setenv(marker.CARRIER, text) end
end

-- Without posix.stdlib the SPANK plugin carries the class; one GPU is then bound.
local function carry(class, found)
  set_carrier(marker.carrier({
    class = class, role = "guest", per = found.per, count = found.count, token = "none",
  }))
end

local function rewrite_job(options, class)
  local found = read_gpus(options)
  if not found then return end
  local seats_by_name = found.per == "node" and found.gres.gpus == 0 and found.seats > 0
  if class ~= "opportunistic" and not seats_by_name then return end
  carry(class, found)
  if found.seats == 0 then return end
  drop_gpu_options(options)
  local seats = { others = found.gres.others, gpus = found.seats, slots = 0 }
  seats.prefix, seats.between = "", ":"
  options.gres = tres.swap(seats):gsub("gres[:/]", "")
end

-- A step of a guest: the seats are the job's, the step needs none of its own. How many of the job's
-- GPUs each task is to see is carried to the node.
local function rewrite_step(options, carrier)
  local gres = tres.read(options.gres)
  local per_task = count_of(options["gpus-per-task"])
  if per_task and per_task > 0 then set_carrier(marker.of_step(carrier, per_task)) end
  drop_gpu_options(options)
  if gres and gres.gpus > 0 then
    local others = table.concat(gres.others, ","):gsub("gres[:/]", "")
    options.gres = others ~= "" and others or "none"
  end
end

-- Whether the command line has a lone colon. Slurm asks us part by part and tells the first part
-- nothing of the others; job_submit leaves such a job to Slurm, and so must we.
local function is_heterogeneous()
  local file = io.open("/proc/self/cmdline", "rb")
  local words = file and file:read("*a") or ""
  if file then file:close() end
  return words:find("%z:%z") ~= nil
end

local function refusal_of(options)
  for _, one in ipairs(IRREVOCABLE) do
    if positive((options[one.option] or ""):match("^%d+")) then
      return ("[slipstream] %s of a guest cannot have --%s: say %s instead, or use sbatch"):format(
        options.type, one.option, one.instead)
    end
  end
  return nil
end

-- What to tell the user instead of going on; nil for nearly everybody.
function M.pre_submit(options, disable_file)
  if options.type == "srun" and os.getenv("SLURM_JOB_ID") then
    local carrier = os.getenv(marker.CARRIER) or ""
    if not carrier:find("role=guest", 1, true) then return nil end
    local why = refusal_of(options)
    if not why then rewrite_step(options, carrier) end
    return why
  end
  local class = class_of(options)
  local off = switch.is_off(disable_file or switch.DEFAULT_FILE)
  if not class or is_heterogeneous() or off then
    return nil
  end
  local why = class == "opportunistic" and refusal_of(options) or nil
  if not why then rewrite_job(options, class) end
  return why
end

return M
