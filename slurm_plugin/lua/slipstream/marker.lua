-- SPDX-License-Identifier: Apache-2.0
-- The marker in admin_comment and the carrier in a batch job's environment. Pure, but for token().
local M = {}

M.CARRIER = "SLURM_SLIPSTREAM"

local LIMIT = 512

local TOKEN_BYTES, TOKENS_AT_ONCE = 8, 64
local HEX = ("%02x"):rep(TOKEN_BYTES)
local stock, used = "", 0

local function fill_stock()
  local source = assert(io.open("/dev/urandom", "rb"))
  source:setvbuf("no")
  stock, used = source:read(TOKEN_BYTES * TOKENS_AT_ONCE) or "", 0
  source:close()
  assert(#stock >= TOKEN_BYTES, "/dev/urandom gave too little")
end

-- 16 hex digits nobody can guess: the advice for a job is found by them.
function M.token()
  if #stock - used < TOKEN_BYTES then fill_stock() end
  used = used + TOKEN_BYTES
  return HEX:format(stock:byte(used - TOKEN_BYTES + 1, used))
end

local function words_of(plan)
  local words = {
    "v=1",
    "token=" .. plan.token,
    "class=" .. plan.class,
    "role=" .. plan.role,
    ("gpus=%s:%d"):format(plan.per, plan.count),
    ("weight=%d"):format(plan.flags.weight or 1),
  }
  if plan.flags.elastic then
    words[#words + 1] = ("elastic=%d-%d"):format(plan.flags.elastic[1], plan.flags.elastic[2])
  end
  if plan.flags.no_share then words[#words + 1] = "share=no" end
  if plan.flags.no_move then words[#words + 1] = "move=no" end
  if plan.may_be_guest then words[#words + 1] = "guest=may" end
  return words
end

-- What a site has put there stays; a marker of an earlier life does not.
function M.comment(plan, before)
  local marker = ("[slipstream %s]"):format(table.concat(words_of(plan), " "))
  assert(#marker <= LIMIT, "the marker is too long")
  local kept = (before or ""):gsub("%s*%[slipstream [^%]]*%]", "")
  return kept == "" and marker or kept .. " " .. marker
end

function M.carrier(plan)
  local flags = plan.flags or {}
  local weighs = flags.weight and flags.weight > 1
  return ("class=%s,role=%s,gpus=%s:%d,token=%s%s%s%s"):format(
    plan.class, plan.role, plan.per, plan.count, plan.token,
    plan.tasks_per_gpu and (",tasks_per_gpu=%d"):format(plan.tasks_per_gpu) or "",
    weighs and (",weight=%d"):format(flags.weight) or "", flags.no_share and ",share=no" or "")
end

-- The carrier of a guest's step whose srun asks for so many GPUs of each task.
function M.of_step(carrier, gpus_per_task)
  local changed = carrier:gsub("gpus=%a+:%d+", ("gpus=task:%d"):format(gpus_per_task), 1)
  return (changed:gsub(",tasks_per_gpu=%d+", ""))
end

-- A comment whose marker says that the job's start is ours, until then: soft hold takes it over.
function M.held(comment, until_s)
  local head, words, tail = (comment or ""):match("^(.*%[slipstream )([^%]]*)(%].*)$")
  local longer = words and ("%s hold=%d"):format(words, until_s)
  if not longer or #longer + #"[slipstream ]" > LIMIT then return nil end
  return head .. longer .. tail
end

-- A word of the marker in a comment: value("… [slipstream v=1 role=guest]", "role") is "guest".
function M.value(comment, key)
  local words = (comment or ""):match("%[slipstream ([^%]]*)%]")
  return words and (" " .. words .. " "):match(" " .. key .. "=([^ ]*) ")
end

return M
