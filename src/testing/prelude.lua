-- What a script finds in Redis: the table `redis`, errors that are tables, and read-only globals.
-- Receives the host's functions; returns the function that runs a script.
local execute, sha1hex, line = ...
local error, type, tostring, tonumber, xpcall = error, type, tostring, tonumber, xpcall
local find, gsub = string.find, string.gsub

redis = {pcall = execute, sha1hex = sha1hex}

function redis.call(...)
  local reply = execute(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end

function redis.error_reply(text)
  if type(text) ~= 'string' then return {err = 'ERR wrong number or type of arguments'} end
  text = gsub(text, '^%-', '')
  -- The first word is the code. A text without one gets a generic code.
  if not find(text, ' ', 1, true) then text = 'ERR ' .. text end
  return {err = text}
end

function redis.status_reply(text)
  return {ok = text}
end

for _, name in ipairs({'collectgarbage', 'dofile', 'loadfile', 'newproxy', 'print', 'require'}) do
  _G[name] = nil
end

setmetatable(_G, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})

local function handler(err)
  if type(err) ~= 'table' then err = {err = 'ERR ' .. tostring(err)} end
  err.line = line()
  return err
end

return function(script) return xpcall(script, handler) end
