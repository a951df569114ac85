-- Sets the globals of scripts as Redis does: the table `redis`, and a `pcall` that returns errors
-- as tables. All are read-only. This chunk receives functions of the host, and returns the function
-- that runs a script. `reply_of` converts an error of the host, which is userdata, to the table
-- that it is in Redis. `line` returns the line that the script has reached.
local call, protected_call, reply_of, sha1hex, line = ...
local error, pcall_of_host, type, tostring, xpcall = error, pcall, type, tostring, xpcall
local rawset_of_host, setmetatable_of_host = rawset, setmetatable
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

-- Redis's Lua has read-only tables, and Lua 5.1 has none. A stand-in is an empty table that reads
-- from the real one and refuses writes.
local is_stand_in = {}

local function refuse(level)
  error('Attempt to modify a readonly table', level)
end

local function protect(stand_in, real)
  is_stand_in[stand_in] = true
  return setmetatable_of_host(stand_in, {
    __index = real,
    __newindex = function() refuse(3) end,
    __metatable = false,
  })
end

function rawset(target, ...)
  if is_stand_in[target] then refuse(0) end
  return rawset_of_host(target, ...)
end

function setmetatable(target, ...)
  if is_stand_in[target] then refuse(0) end
  return setmetatable_of_host(target, ...)
end

local removed = {
  'collectgarbage', 'dofile', 'getfenv', 'loadfile', 'newproxy', 'print', 'require', 'setfenv',
}
for _, name in ipairs(removed) do
  _G[name] = nil
end

local globals, stand_in = {}, _G
for name, value in pairs(stand_in) do
  local is_library = type(value) == 'table' and value ~= stand_in
  globals[name] = is_library and protect({}, value) or value
end
for name in pairs(globals) do
  stand_in[name] = nil
end
protect(stand_in, setmetatable_of_host(globals, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
}))

local of_strings = getmetatable('')
of_strings.__index = string
of_strings.__metatable = protect({}, {__index = string})

local function handler(err)
  if type(err) == 'userdata' then err = reply_of(err) end
  if type(err) ~= 'table' then err = {err = 'ERR ' .. tostring(err)} end
  err.line = line()
  return err
end

return function(script, keys, args)
  globals.KEYS, globals.ARGV = keys, args
  return xpcall(script, handler)
end
