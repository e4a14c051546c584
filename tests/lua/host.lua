-- SPDX-License-Identifier: Apache-2.0
-- Plays slurmctld and srun for the modules under test: one JSON line in, one out, until the end.
--
-- Its job_desc is as strict as Slurm's: a field that does not exist raises, and so does a value of
-- the wrong type. nil cannot be set.
package.path = arg[1] .. "/?.lua;" .. package.path
local json = require "slipstream.json"

local STRINGS = {
  "account", "admin_comment", "array_inx", "cpus_per_tres", "mem_per_tres", "name", "partition",
  "qos", "script", "tres_bind", "tres_freq", "tres_per_job", "tres_per_node", "tres_per_socket",
  "tres_per_task", "work_dir",
}
local NO_VAL, NO_VAL16 = 4294967294, 65534
local NUMBERS = {
  begin_time = 0, cpus_per_task = NO_VAL16, het_job_offset = NO_VAL, max_nodes = NO_VAL, min_cpus = 1,
  min_nodes = NO_VAL, ntasks_per_gpu = NO_VAL16, ntasks_per_node = NO_VAL16,
  ntasks_per_tres = NO_VAL16, num_tasks = NO_VAL, shared = NO_VAL16, sockets_per_node = NO_VAL16,
  time_limit = NO_VAL, user_id = 1000,
}
local MEMORY = { min_mem_per_node = true, min_mem_per_cpu = true }

local said

local function log_to(name)
  return function(...) table.insert(said[name], string.format(...)) end
end

slurm = {
  SUCCESS = 0,
  ERROR = -1,
  log_user = log_to("user"),
  log_info = log_to("info"),
  log_error = log_to("error"),
  log_debug = log_to("debug"),
}

local function unset(value) return value == nil or value == json.null end

local function counted_from_0(lines)
  local by_number = {}
  for at, line in ipairs(lines or {}) do by_number[at - 1] = line end
  return by_number, #(lines or {})
end

-- As Slurm spells what is set as `gres`: 22.05 with "gres:", 24.11 with "gres/".
local function spelt(text, prefix)
  local parts = {}
  for part in text:gmatch("[^,]+") do parts[#parts + 1] = prefix .. part:gsub("^gres[:/]", "") end
  return table.concat(parts, ",")
end

-- The job as Slurm shows it to Lua, and the plain table behind it. `broken` cannot be set.
local function job_desc_of(given, lines, broken, prefix)
  local kinds, fields = {}, {}
  for _, name in ipairs(STRINGS) do kinds[name] = "string" end
  for name, default in pairs(NUMBERS) do
    kinds[name], fields[name] = "number", default
  end
  for name in pairs(MEMORY) do kinds[name] = "number" end
  for name, value in pairs(given) do fields[name] = not unset(value) and value or nil end
  fields.spank_job_env, fields.spank_job_env_size = counted_from_0(lines)
  kinds.spank_job_env, kinds.spank_job_env_size = "read", "read"
  local environment = {}
  fields.environment = setmetatable({}, {
    __newindex = function(_, name, value)
      if not fields.script then error("environment only accessible for batch jobs") end
      environment[name] = value
    end,
  })
  kinds.environment, kinds.argv = "read", "read"
  fields.argv = given.argv and counted_from_0(given.argv)
  local function set(job, name, value)
    if name == "gres" then job.tres_per_node = spelt(value, prefix or "gres:") return end
    if name == broken or kinds[name] == nil or kinds[name] == "read" then
      error("bad field " .. name)
    end
    if type(value) ~= kinds[name] then error("bad type for " .. name .. ": " .. type(value)) end
    if MEMORY[name] then fields.min_mem_per_node, fields.min_mem_per_cpu = nil, nil end
    fields[name] = value ~= "" and value or nil
  end
  local function get(_, name)
    if kinds[name] == nil then error("no such field " .. name) end
    return fields[name]
  end
  return setmetatable({}, { __index = get, __newindex = set }), fields, environment
end

local function shown(fields)
  local copy = {}
  for name, value in pairs(fields) do
    local told = type(value) ~= "table" and name ~= "spank_job_env_size"
    if told and value ~= NUMBERS[name] then copy[name] = value end
  end
  return copy
end

local commands = {}

-- Modules anew: a closed breaker, default settings.
function commands.fresh(told)
  for name in pairs(package.loaded) do
    if name:find("^slipstream") and name ~= "slipstream.json" then package.loaded[name] = nil end
  end
  local daemon = require "slipstream.daemon"
  for name, value in pairs(told.daemon or {}) do daemon[name] = value end
  require("slipstream").configure(told.settings or {})
  return {}
end

function commands.submit(told)
  local job, fields, environment = job_desc_of(told.job, told.spank, told.broken, told.prefix)
  local site = told.site_refuses and function() return 2 end or nil
  local submit = require("slipstream").wrap(site, nil)
  local rc = submit(job, {}, fields.user_id)
  return { rc = rc, job = shown(fields), environment = environment }
end

function commands.modify(told)
  local job, fields = job_desc_of(told.job, {})
  local _, modify = require("slipstream").wrap(nil, nil)
  local rc = modify(job, { admin_comment = told.admin_comment }, {}, told.uid)
  return { rc = rc, job = shown(fields) }
end

function commands.flag(told)
  local value, why = require("slipstream.flags").read(told.twin, told.text)
  return { good = value ~= nil, why = why or json.null }
end

local function bytes_of(hex)
  return (hex:gsub("..", function(digits) return string.char(tonumber(digits, 16)) end))
end

function commands.decode(told)
  local value, why = json.decode(bytes_of(told.hex))
  return { value = value == nil and json.null or value, why = why or json.null }
end

function commands.echo(told) return { value = told.value } end

function commands.encode_bytes(told)
  return { value = bytes_of(told.hex) }
end

function commands.tell(told)
  local daemon = require "slipstream.daemon"
  local plan = { token = "0", class = "auto", role = "owner", per = "node", count = 1, flags = {} }
  local request = { nodes = 1, tasks = 1, script = told.script }
  local answer, why = daemon.tell(told.path, request, plan, slurm.log_info, told.now_s)
  return { answered = answer ~= nil, why = why or json.null }
end

function commands.pre_submit(told)
  local getenv, set = os.getenv, {}
  os.getenv = function(name) return told.env[name] end
  package.loaded["posix.stdlib"] = { setenv = function(name, value) set[name] = value end }
  local _, pre_submit = require("slipstream_cli_filter").wrap(nil, nil, nil)
  local stderr = io.stderr
  local lines = {}
  io.stderr = { write = function(_, ...) lines[#lines + 1] = table.concat({ ... }) end }
  local rc = pre_submit(told.options, 0)
  os.getenv, io.stderr = getenv, stderr
  return { rc = rc, options = told.options, environment = set, stderr = json.array(lines) }
end

for line in io.lines() do
  local told = assert(json.decode(line))
  said = {}
  for _, level in ipairs({ "user", "info", "error", "debug" }) do said[level] = json.array({}) end
  local result = commands[told["do"]](told)
  result.said = said
  io.write(json.encode(result), "\n")
  io.flush()
end
