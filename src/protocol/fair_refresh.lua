-- Says for those of a client who wait that they still do; grants the lock to the first in the queue if it is free.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places; ARGV[1] the client's inbox, then the holder ids
-- A list, for each of them: 0 it waits; its fencing token, it holds the lock; -1 it does neither, and never will.
-- Errors: BADFENCE where the fence holds no integer below 2^53. Then nobody is granted anything.
keep()
if not redis.call('LINDEX', KEYS[3], 0) then
  -- Without their order places are none.
  redis.call('DEL', KEYS[4])
end
local reply = {}
for n = 2, #ARGV do
  local place = redis.call('HGET', KEYS[4], ARGV[n])
  local provisional = place and string.match(place, '^%d+ (%d+) ')
  if provisional then
    redis.call('HSET', KEYS[4], ARGV[n], now .. ' ' .. provisional .. ' ' .. ARGV[1])
  end
  reply[n - 1] = provisional and 0 or -1
end
local holder, token = redis.call('GET', KEYS[1]), nil
if not holder then
  holder, token = grant()
  if type(token) == 'table' then return token end
end
for n = 2, #ARGV do
  if ARGV[n] == holder then
    if not token then
      -- The last that was drawn is the holder's; where somebody has deleted it, the next will do.
      local next, bad = draw()
      if bad then return bad end
      token = tonumber(redis.call('GET', KEYS[2]) or next)
    end
    reply[n - 1] = token
  end
end
return reply
