-- SPDX-License-Identifier: Apache-2.0
-- Requests for trackable resources as job_submit sees them, read and rewritten. Pure.
--
--   22.05   gres:gpu:2   gres:gpu:a100:2,gres:nic:1
--   24.11   gres/gpu:2   and per task   cpu=2,gres/gpu:a100=1
local M = {}

-- Where a job_desc may ask for GPUs.
M.FIELDS = { "tres_per_node", "tres_per_task", "tres_per_socket", "tres_per_job" }

-- A guest's seat, a GRES of its own.
local SLOT = "slot"

-- GPUs that Slurm itself cuts in pieces: not ours to touch.
local CUT_GPUS = { mps = true, shard = true }

local function read_item(text)
  local prefix, rest = text:match("^(gres[:/])(.*)$")
  local name, between, detail = (rest or text):match("^([%w_]+)([:=]?)(.*)$")
  if not name then return nil end
  local item = { text = text, prefix = prefix or "", name = name, count = 1 }
  local type_name, last, count = detail:match("^([^:=]*)([:=])(%d+)$")
  if detail:match("^%d+$") then
    item.count, item.between = tonumber(detail), between
  elseif count and type_name ~= "" then
    item.count, item.between = tonumber(count), last
  elseif detail == "" or detail:match("^[%w_%.%-]+$") then
    item.between = ":"
  else
    return nil
  end
  return item
end

-- A request taken apart: what stays as it is, how many `gpu` and `slot` it asks for, and in which
-- spelling. nil if it is not understood, with the part that was not.
function M.read(text)
  local found = { others = {}, gpus = 0, slots = 0, asks = false }
  for part in (text or ""):gmatch("[^,]+") do
    local item = read_item(part)
    if item and item.name == "gpu" or item and item.name == SLOT then
      found.asks = true
      found.prefix, found.between = item.prefix, item.between
      local kind = item.name == "gpu" and "gpus" or "slots"
      found[kind] = found[kind] + item.count
    elseif not item and part:find("gpu", 1, true) or item and CUT_GPUS[item.name] then
      return nil, part
    else
      found.others[#found.others + 1] = part
    end
  end
  return found
end

-- The same request with slots in place of GPUs of whatever type.
function M.swap(found)
  local parts = {}
  for _, other in ipairs(found.others) do parts[#parts + 1] = other end
  local count = found.gpus + found.slots
  if count > 0 then
    parts[#parts + 1] = ("%s%s%s%d"):format(found.prefix, SLOT, found.between, count)
  end
  return table.concat(parts, ",")
end

-- What is asked for on each node, and GPUs beside it; Slurm has still to spell it.
function M.with_gpus(text, count)
  local gpus = ("gpu:%d"):format(count)
  return text and text .. "," .. gpus or gpus
end

-- The same of seats.
function M.seats(count) return ("%s:%d"):format(SLOT, count) end

-- The number of a "gres:gpu:4" in cpus_per_tres and mem_per_tres; nil if there is none.
function M.per_gpu(text)
  for part in (text or ""):gmatch("[^,]+") do
    local item = read_item(part)
    if item and item.name == "gpu" then return item.count end
  end
  return nil
end

return M
