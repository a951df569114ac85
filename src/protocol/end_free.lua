-- Replies with the token of a lock that take_free.lua has taken, or gives the lock back. Follows
-- draw_free.lua.
if bad then
  redis.call('DEL', KEYS[1])
  return {err = bad}
end
if token then return token end

