-- SPDX-License-Identifier: Apache-2.0
-- The kill switch: while the file is there, no new guests. Looked at for flagged jobs only.
local M = { DEFAULT_FILE = "/etc/slipstream/disable" }

function M.is_off(path)
  local file = io.open(path, "r")
  if file then file:close() end
  return file ~= nil
end

return M
