-- SPDX-License-Identifier: Apache-2.0
-- Tells the scheduler daemon of a submission and takes its answer, within a deadline.
--
-- slurmctld waits for us under its locks: one question costs at most DEADLINE_S, and after
-- FAILURES in a row none is asked for REST_S. No answer is ever needed.
local json = require "slipstream.json"

local M = { DEADLINE_S = 0.020, FAILURES = 3, REST_S = 30 }

local SIZE_LIMIT = 65536
local SCRIPT_LIMIT = 16384
local MESSAGE_LIMIT = 400
local LONGEST_HOLD_S = 60
local MOST_GPUS = 16

local failures, rests_until = 0, 0

-- In fractions of a second where LuaSocket is there to tell them.
function M.now_s()
  local ok, socket = pcall(require, "socket")
  return ok and socket.gettime() or os.time()
end

local function or_null(value)
  if value == nil then return json.null end
  return value
end

-- What the daemon is told; docs/flags.md has the fields.
function M.question(request, plan)
  local flags = plan.flags
  return {
    v = 1,
    token = plan.token,
    uid = request.user_id or 0,
    class = plan.class,
    role = plan.role,
    gpus = { per = plan.per, count = plan.leaves_gpus_to_us and 0 or plan.count },
    nodes = json.array({ request.nodes, request.max_nodes or request.nodes }),
    tasks = request.tasks,
    cpus_per_task = request.cpus_per_task or 1,
    memory_mib = or_null(request.memory_per_node_mib),
    partition = or_null(request.partition),
    account = or_null(request.account),
    qos = or_null(request.qos),
    name = or_null(request.name),
    time_limit_s = or_null(request.time_limit_min and request.time_limit_min * 60),
    array = or_null(request.array),
    hints = flags.hints or {},
    elastic = flags.elastic and json.array({ flags.elastic[1], flags.elastic[2] }) or json.null,
    roles = or_null(flags.roles),
    data = json.array(flags.data or {}),
    weight = flags.weight or 1,
    share = not flags.no_share,
    move = not flags.no_move,
    argv = json.array(request.argv or {}),
    script = or_null(request.script and request.script:sub(1, SCRIPT_LIMIT)),
    work_dir = or_null(request.work_dir),
  }
end

local function line_of(question)
  local line = json.encode(question) .. "\n"
  if #line > SIZE_LIMIT then
    -- What is full of odd bytes grows sixfold.
    question.script, question.argv = json.null, json.array({})
    line = json.encode(question) .. "\n"
  end
  if #line > SIZE_LIMIT then error("the question is too long", 0) end
  return line
end

local function connect(unix, path, left_s)
  local make = type(unix) == "table" and unix.stream or unix
  local peer = assert(make())
  peer:settimeout(left_s)
  local ok, why = peer:connect(path)
  if not ok then
    peer:close()
    error(why, 0)
  end
  return peer
end

local function receive_line(socket, peer, deadline)
  local text = ""
  peer:settimeout(0)
  while not text:find("\n", 1, true) do
    local left_s = deadline - socket.gettime()
    if left_s <= 0 then error("timeout", 0) end
    socket.select({ peer }, nil, math.min(left_s, M.DEADLINE_S))
    local all, why, part = peer:receive(4096)
    text = text .. (all or part or "")
    if #text > SIZE_LIMIT then error("the answer is too long", 0) end
    if why == "closed" then break end
  end
  return text:match("^([^\n]*)\n") or error("the answer was cut off", 0)
end

local function exchange(path, line)
  local socket, unix = require "socket", require "socket.unix"
  local begun = socket.gettime()
  local deadline = begun + M.DEADLINE_S
  local peer = connect(unix, path, M.DEADLINE_S)
  local ok, answer = pcall(function()
    peer:settimeout(math.max(deadline - socket.gettime(), 0.001))
    local sent, why = peer:send(line)
    if not sent then error(why, 0) end
    return receive_line(socket, peer, deadline)
  end)
  peer:close()
  if not ok then error(answer, 0) end
  return answer
end

-- The fields of an answer that we know, each checked; or nil and what is wrong.
function M.read_answer(text)
  local found, why = json.decode(text)
  if found == nil then return nil, why end
  if type(found) ~= "table" or found.v ~= 1 then return nil, "not an answer of version 1" end
  local hold_s = found.hold_s
  if hold_s == json.null then hold_s = nil end
  if hold_s ~= nil and (type(hold_s) ~= "number" or hold_s < 1 or hold_s > LONGEST_HOLD_S
      or hold_s % 1 ~= 0) then
    return nil, "hold_s is not a number of seconds"
  end
  local gpus = found.gpus
  if gpus == json.null then gpus = nil end
  if gpus ~= nil and (type(gpus) ~= "number" or gpus < 1 or gpus > MOST_GPUS or gpus % 1 ~= 0) then
    return nil, "gpus is not a number of GPUs"
  end
  local message = found.message
  if message == nil or message == json.null then return { hold_s = hold_s, gpus = gpus } end
  if type(message) ~= "string" or #message > MESSAGE_LIMIT or message:find("[%z\1-\31\127]") then
    return nil, "the message is not one short line"
  end
  return { message = message, hold_s = hold_s, gpus = gpus }
end

-- The answer, or nil and why there is none. `now_s` may be given by a test.
function M.tell(path, request, plan, log, now_s)
  local now = now_s or os.time()
  if failures >= M.FAILURES and now < rests_until then return nil, "resting" end
  local ok, answer, why = pcall(function()
    return M.read_answer(exchange(path, line_of(M.question(request, plan))))
  end)
  if ok and answer then
    if failures >= M.FAILURES then log("slipstream: the scheduler daemon answers again") end
    failures = 0
    return answer
  end
  why = tostring(ok and why or answer)
  failures = failures + 1
  if failures >= M.FAILURES then
    rests_until = now + M.REST_S
    log(("slipstream: no answer from %s (%s), next try in %d s"):format(path, why, M.REST_S))
  end
  return nil, why
end

return M
