-- Acquires a free lock alone. Prepended to acquire.lua, and behind enter_free.lua to
-- queue_enter.lua: before the functions of the queue, which Redis would otherwise create in every
-- call. Behind it, draw_free.lua draws the tokens, and end_free.lua replies. What these leave
-- undone is left to the rest of the script.

-- The reply to TIME once the lock is taken, and how many tokens follow the first one.
local time, more
if #KEYS == 2 or not is_for_queue then
  -- Lua looks up a global by its name at each use.
  local redis, KEYS, ARGV = redis, KEYS, ARGV
  -- First: a server whose memory is full refuses it, but would allow any write after another. If
  -- the lock is held, still a write: a server that has become a replica replies READONLY.
  local taken = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
  if taken and taken.ok then
    time = redis.pcall('TIME')
    more = ARGV[3] and ARGV[3] ~= '1' and ARGV[3] - 1 or 0
  elseif taken and #KEYS == 2 then
    return taken
  end
end

