-- SPDX-License-Identifier: Apache-2.0
-- The --slip-* flags as they arrive from a client, checked and read. Pure.
--
-- slurm_plugin/spank/flags.c checks the same values with the same sentences in the client; here
-- come those that it cannot refuse: values from the environment.
local M = {}

M.VALUE_LIMIT = 256

local CLASSES = { guaranteed = true, shared = true, opportunistic = true, auto = true }
local SHOWN_BYTES = 64

local function whole_number(text, low, high)
  if not text:match("^[0-9]+$") or #text > 9 or text:match("^0%d") then return nil end
  local number = tonumber(text)
  if number < low or number > high then return nil end
  return number
end

local function pairs_of(text, between, good_value)
  local found = {}
  for pair in (text .. ","):gmatch("([^,]*),") do
    local key, value = pair:match("^([a-z][a-z0-9_]*)" .. between .. "(.*)$")
    if not key or #key > 32 or found[key] ~= nil then return nil end
    value = good_value(value)
    if value == nil then return nil end
    found[key] = value
  end
  return found
end

local function read_class(text) return CLASSES[text] and text or nil end

local function read_weight(text) return whole_number(text, 1, 16) end

local function read_elastic(text)
  local low, high = text:match("^(%d+)%-(%d+)$")
  low, high = low and whole_number(low, 1, 4096), high and whole_number(high, 1, 4096)
  if not low or not high or low > high then return nil end
  return { low, high }
end

local function read_hints(text)
  return pairs_of(text, "=", function(value)
    return #value <= 64 and value:match("^[A-Za-z0-9._+:/-]+$") and value or nil
  end)
end

local function read_roles(text)
  return pairs_of(text, ":", function(value) return whole_number(value, 1, 1024) end)
end

local function read_data(text)
  if text:find("[%z\1-\31\127]") then return nil end
  local paths = {}
  for path in (text .. ","):gmatch("([^,]*),") do
    if path:sub(1, 1) ~= "/" then return nil end
    paths[#paths + 1] = path
  end
  return paths
end

local function read_switch(text)
  if text == "1" then return true end
  if text == "0" then return false end
  return nil
end

local FLAGS = {
  { key = "class", twin = "SLIPSTREAM_CLASS", read = read_class,
    good = "a class: choose guaranteed, shared, opportunistic or auto" },
  { key = "weight", twin = "SLIPSTREAM_WEIGHT", read = read_weight,
    good = "a weight: choose a whole number from 1 to 16" },
  { key = "elastic", twin = "SLIPSTREAM_ELASTIC", read = read_elastic,
    good = "a range of GPUs: write MIN-MAX with 1 <= MIN <= MAX <= 4096, as in 2-8" },
  { key = "hints", twin = "SLIPSTREAM_HINTS", read = read_hints,
    good = "a list of hints: write key=value,key=value with keys of small letters, digits "
      .. "and _, values of letters, digits and . _ + : / -, each key once, "
      .. "as in model=resnet50,batch=64" },
  { key = "roles", twin = "SLIPSTREAM_ROLES", read = read_roles,
    good = "a list of roles: write name:count,name:count with names of small letters, "
      .. "digits and _, counts from 1 to 1024, each name once, as in ps:1,worker:4" },
  { key = "data", twin = "SLIPSTREAM_DATA", read = read_data,
    good = "a list of paths: write absolute paths with commas between them, "
      .. "as in /data/imagenet,/data/coco" },
  { key = "no_share", twin = "SLIPSTREAM_NO_SHARE", read = read_switch,
    good = "a switch: choose 1 or 0" },
  { key = "no_move", twin = "SLIPSTREAM_NO_MOVE", read = read_switch,
    good = "a switch: choose 1 or 0" },
}

local BY_TWIN = {}
for _, flag in ipairs(FLAGS) do BY_TWIN[flag.twin] = flag end

-- For a terminal: short, and without anything that is not plain text.
local function show(value)
  local shown = value:sub(1, SHOWN_BYTES):gsub("[^\32-\126]", "?")
  return #value > SHOWN_BYTES and shown .. "..." or shown
end

-- The value as Lua has it; or nil and the sentence that refuses it.
function M.read(twin, text)
  local flag = BY_TWIN[twin]
  if #text > M.VALUE_LIMIT then
    return nil, ("[slipstream] %s is longer than %d bytes"):format(twin, M.VALUE_LIMIT)
  end
  local value = nil
  if not text:find("%z") then value = flag.read(text) end
  if value == nil then
    return nil, ("[slipstream] %s=%s is not %s"):format(twin, show(text), flag.good)
  end
  return value
end

-- All flags among NAME=value lines: a table by key, empty if there are none; or nil and why.
function M.from_environment(lines)
  local found = {}
  for _, line in ipairs(lines) do
    local name, text = line:match("^([A-Z_]+)=(.*)$")
    local flag = name and BY_TWIN[name]
    if flag then
      local value, why = M.read(name, text)
      if value == nil then return nil, why end
      found[flag.key] = value
    end
  end
  return found
end

return M
