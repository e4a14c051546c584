-- SPDX-License-Identifier: Apache-2.0
-- Tells the scheduler daemon of a submission and takes its answer, within a deadline.
--
-- slurmctld waits for us under its locks: one question costs at most DEADLINE_S, and after
-- FAILURES in a row none is asked for REST_S. No answer is ever needed.
--
-- The connection stays for the next question: a new one for each costs both sides more than the
-- question does. Whatever goes wrong on it ends it.
local json = require "slipstream.json"
local questions = require "slipstream.question"

local M = { DEADLINE_S = 0.020, FAILURES = 3, REST_S = 30 }

local SIZE_LIMIT = 65536
local MESSAGE_LIMIT = 400
local LONGEST_HOLD_S = 60
local MOST_GPUS = 16

local failures, rests_until = 0, 0
local kept, kept_path = nil, nil

local has_socket, socket = pcall(require, "socket")
local has_unix, unix = pcall(require, "socket.unix")

-- In fractions of a second where LuaSocket is there to tell them.
M.now_s = has_socket and socket.gettime or os.time

local function connect(path, left_s)
  local make = type(unix) == "table" and unix.stream or unix
  local peer = assert(make())
  peer:settimeout(left_s, "t")
  local ok, why = peer:connect(path)
  if not ok then
    peer:close()
    error(why, 0)
  end
  return peer
end

-- The connection of the last question, if its other end is still there and has said no more than
-- it was asked.
local function take_kept(path)
  local peer = kept
  kept = nil
  if not peer then return nil end
  peer:settimeout(0, "t")
  local _, why, part = peer:receive(1)
  if kept_path == path and why == "timeout" and part == "" then return peer end
  peer:close()
  return nil
end

local function set_deadline(peer, deadline)
  -- "t": for all of a call, however the other end dribbles.
  peer:settimeout(math.max(deadline - socket.gettime(), 0.001), "t")
end

-- The answer; or nil, why, and whether the other end was there: one that has gone, before it said
-- anything, may have been the daemon of before.
local function ask(peer, line, deadline)
  set_deadline(peer, deadline)
  local sent, why = peer:send(line)
  if not sent then return nil, why, why == "timeout" end
  set_deadline(peer, deadline)
  local answer, wrong, part = peer:receive("*l")
  if answer and #answer > SIZE_LIMIT then return nil, "the answer is too long", true end
  return answer, wrong, wrong == "timeout" or part ~= ""
end

local function exchange(path, line)
  if not (has_socket and has_unix) then error("LuaSocket is not installed", 0) end
  local deadline = socket.gettime() + M.DEADLINE_S
  local peer = take_kept(path)
  local answer, why, met = nil, nil, false
  if peer then answer, why, met = ask(peer, line, deadline) end
  if not answer and not met then -- the first question, or the daemon was started anew
    if peer then peer:close() end
    peer = connect(path, M.DEADLINE_S)
    answer, why = ask(peer, line, deadline)
  end
  if not answer then
    peer:close()
    error(why, 0)
  end
  kept, kept_path = peer, path
  return answer
end

-- The fields of an answer that we know, each checked; or nil and what is wrong.
function M.read_answer(text)
  local plain = text:match('^{"v":1,"message":"([^"\\%z\1-\31\127-\255]+)"}$') -- nearly always
  if plain and #plain <= MESSAGE_LIMIT then return { message = plain } end
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

-- Whether it is not even asked for now.
function M.rests(now) return failures >= M.FAILURES and now < rests_until end

-- The answer, or nil and why there is none. `now_s` may be given by a test.
function M.tell(path, request, plan, log, now_s)
  local now = now_s or os.time()
  if M.rests(now) then return nil, "resting" end
  local ok, answer, why = pcall(function()
    return M.read_answer(exchange(path, questions.line(request, plan)))
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
