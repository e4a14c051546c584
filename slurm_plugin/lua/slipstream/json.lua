-- SPDX-License-Identifier: Apache-2.0
-- The little JSON we speak with the daemon: every Lua from 5.1 on, no library, bounded. Pure.
local M = {}

M.null = setmetatable({}, { __tostring = function() return "null" end })

local ARRAY = {}
local DEPTH_LIMIT = 16
local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

-- A list, even when it is empty.
function M.array(list) return setmetatable(list, ARRAY) end

local function utf8_length(text, at)
  for length, pattern in ipairs({
    "^[%z\1-\127]", "^[\194-\223][\128-\191]", "^[\224-\239][\128-\191][\128-\191]",
    "^[\240-\244][\128-\191][\128-\191][\128-\191]",
  }) do
    if text:match(pattern, at) then return length end
  end
  return nil
end

-- Surrogates, overlong forms and numbers beyond Unicode are no text either.
local function is_text(part)
  for _, wrong in ipairs({
    "^\224[\128-\159]", "^\237[\160-\191]", "^\240[\128-\143]", "^\244[\144-\191]",
  }) do
    if part:match(wrong) then return false end
  end
  return true
end

local function clean(text)
  if not text:find("[\128-\255]") then return text end
  local parts, at = {}, 1
  while at <= #text do
    local length = utf8_length(text, at)
    local part = length and text:sub(at, at + length - 1)
    if part and is_text(part) then
      parts[#parts + 1] = part
    else
      parts[#parts + 1], length = "\239\191\189", 1
    end
    at = at + length
  end
  return table.concat(parts)
end

local function quote(text)
  if not text:find('[%z\1-\31"\\\127-\255]') then return '"' .. text .. '"' end
  return '"' .. clean(text):gsub('[%z\1-\31"\\\127]', function(byte)
    return ESCAPES[byte] or ("\\u%04x"):format(byte:byte())
  end) .. '"'
end

local encode

local function encode_table(value)
  local parts = {}
  if getmetatable(value) == ARRAY then
    for _, item in ipairs(value) do parts[#parts + 1] = encode(item) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do parts[#parts + 1] = quote(key) .. ":" .. encode(value[key]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

function encode(value)
  local kind = type(value)
  if value == M.null then return "null" end
  if kind == "string" then return quote(value) end
  if kind == "boolean" then return tostring(value) end
  if kind == "number" then return ("%.0f"):format(value) end
  if kind == "table" then return encode_table(value) end
  error("JSON has no " .. kind)
end

M.encode = encode

-- --- reading --------------------------------------------------------------------------------

local decode_value

local function skip(text, at) return text:find("[^ \t\r\n]", at) or #text + 1 end

local function utf8_of(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  local low = string.char(0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 4096)) .. low end
  return string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64) .. low
end

local UNESCAPES = {
  b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/",
}

-- The character of a \uXXXX, two of them where Unicode needs a pair; and where it ends.
local function decode_escape(text, at)
  local digits = text:match("^%x%x%x%x", at) or error("a byte that cannot be in text", 0)
  local code = tonumber(digits, 16)
  if code < 0xD800 or code > 0xDFFF then return utf8_of(code), at + 4 end
  local low = tonumber(text:match("^\\u(%x%x%x%x)", at + 4) or "0", 16)
  if code > 0xDBFF or low < 0xDC00 or low > 0xDFFF then return "\239\191\189", at + 4 end
  return utf8_of(0x10000 + (code - 0xD800) * 1024 + low - 0xDC00), at + 10
end

local function decode_string(text, at)
  local parts = {}
  at = at + 1
  while true do
    local stop = text:find('["\\%z\1-\31]', at)
    if not stop then error("text without end", 0) end
    parts[#parts + 1] = text:sub(at, stop - 1)
    local byte = text:sub(stop, stop)
    if byte == '"' then return table.concat(parts), stop + 1 end
    local after = text:sub(stop + 1, stop + 1)
    if byte == "\\" and after == "u" then
      parts[#parts + 1], at = decode_escape(text, stop + 2)
    elseif byte == "\\" and UNESCAPES[after] then
      parts[#parts + 1], at = UNESCAPES[after], stop + 2
    else
      error("a byte that cannot be in text", 0)
    end
  end
end

local function decode_list(text, at, depth)
  local list = M.array({})
  at = skip(text, at + 1)
  if text:sub(at, at) == "]" then return list, at + 1 end
  while true do
    list[#list + 1], at = decode_value(text, at, depth)
    at = skip(text, at)
    local byte = text:sub(at, at)
    if byte == "]" then return list, at + 1 end
    if byte ~= "," then error("a list without end", 0) end
    at = at + 1
  end
end

local function decode_object(text, at, depth)
  local object = {}
  at = skip(text, at + 1)
  if text:sub(at, at) == "}" then return object, at + 1 end
  while true do
    at = skip(text, at)
    if text:sub(at, at) ~= '"' then error("an object's key is not text", 0) end
    local key
    key, at = decode_string(text, at)
    at = skip(text, at)
    if text:sub(at, at) ~= ":" then error("a key without value", 0) end
    object[key], at = decode_value(text, at + 1, depth)
    at = skip(text, at)
    local byte = text:sub(at, at)
    if byte == "}" then return object, at + 1 end
    if byte ~= "," then error("an object without end", 0) end
    at = at + 1
  end
end

local function decode_number(text, at)
  local found = text:match("^%-?0", at) or text:match("^%-?[1-9]%d*", at)
  if not found then error("not JSON", 0) end
  found = found .. (text:match("^%.%d+", at + #found) or "")
  found = found .. (text:match("^[eE][%+%-]?%d+", at + #found) or "")
  local value = tonumber(found)
  if value >= math.huge or value <= -math.huge then error("a number without bounds", 0) end
  return value, at + #found
end

function decode_value(text, at, depth)
  if depth > DEPTH_LIMIT then error("too deep", 0) end
  at = skip(text, at)
  local byte = text:sub(at, at)
  if byte == '"' then return decode_string(text, at) end
  if byte == "{" then return decode_object(text, at, depth + 1) end
  if byte == "[" then return decode_list(text, at, depth + 1) end
  if text:find("^true", at) then return true, at + 4 end
  if text:find("^false", at) then return false, at + 5 end
  if text:find("^null", at) then return M.null, at + 4 end
  return decode_number(text, at)
end

-- The value; or nil and why not.
function M.decode(text)
  local ok, value, at = pcall(decode_value, text, 1, 0)
  if not ok then return nil, tostring(value) end
  if skip(text, at) <= #text then return nil, "something follows the value" end
  return value
end

return M
