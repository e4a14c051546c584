-- SPDX-License-Identifier: Apache-2.0
-- What the scheduler daemon is told of a submission: one line of JSON. Pure.
--
-- Written from a pattern: slurmctld waits while we write, and a general encoder takes five times as
-- long. docs/flags.md has the fields.
local json = require "slipstream.json"

local M = {}

local SIZE_LIMIT = 65536
local SCRIPT_LIMIT = 16384
local PATTERN = table.concat({
  '{"v":1,"token":"%s","uid":%.0f,"class":"%s","role":"%s","gpus":{"per":"%s","count":%.0f}',
  '"nodes":[%.0f,%.0f],"tasks":%.0f,"cpus_per_task":%.0f,"memory_mib":%s,"time_limit_s":%s',
  '"partition":%s,"account":%s,"qos":%s,"name":%s,"array":%s,"work_dir":%s',
  '"hints":%s,"elastic":%s,"roles":%s,"data":%s,"weight":%.0f,"share":%s,"move":%s',
  '"argv":%s,"script":%s}\n',
}, ",")

local function value(one)
  if one == nil then return "null" end
  return json.encode(one)
end

local function list(items)
  if not items or #items == 0 then return "[]" end
  return json.encode(json.array(items))
end

local function write(request, plan, argv, script)
  local flags = plan.flags
  return PATTERN:format(
    plan.token, request.user_id or 0, plan.class, plan.role, plan.per,
    plan.leaves_gpus_to_us and 0 or plan.count,
    request.nodes, request.max_nodes or request.nodes, request.tasks, request.cpus_per_task or 1,
    value(request.memory_per_node_mib),
    value(request.time_limit_min and request.time_limit_min * 60),
    value(request.partition), value(request.account), value(request.qos), value(request.name),
    value(request.array), value(request.work_dir),
    flags.hints and value(flags.hints) or "{}",
    flags.elastic and list({ flags.elastic[1], flags.elastic[2] }) or "null",
    value(flags.roles), list(flags.data), flags.weight or 1,
    tostring(not flags.no_share), tostring(not flags.no_move),
    list(argv), value(script))
end

-- Of a plan's token, class, role and per we know that they need no quoting: they are ours.
function M.line(request, plan)
  local script = request.script and request.script:sub(1, SCRIPT_LIMIT)
  local line = write(request, plan, request.argv, script)
  if #line > SIZE_LIMIT then
    line = write(request, plan, nil, nil) -- what is full of odd bytes grows sixfold
  end
  if #line > SIZE_LIMIT then error("the question is too long", 0) end
  return line
end

return M
