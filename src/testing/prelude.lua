-- What a script finds in Redis: the table `redis`, errors that are tables, and read-only globals.
-- Receives the host's functions; returns the function that runs a script.
local call, protected_call, reply_of, sha1hex, line = ...
local error, pcall_of_host, type, tostring, xpcall = error, pcall, type, tostring, xpcall
local find, gsub = string.find, string.gsub

redis = {call = call, pcall = protected_call, sha1hex = sha1hex}

-- An error of the host, as the table that it is in Redis.
local function converted(ran, ...)
  if not ran and type(...) == 'userdata' then return false, reply_of((...)) end
  return ran, ...
end

function pcall(...)
  return converted(pcall_of_host(...))
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
  if type(err) == 'userdata' then err = reply_of(err) end
  if type(err) ~= 'table' then err = {err = 'ERR ' .. tostring(err)} end
  err.line = line()
  return err
end

return function(script) return xpcall(script, handler) end
