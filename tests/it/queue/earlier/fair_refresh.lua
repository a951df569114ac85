-- Refreshes the places of a client's waiters; grants the lock to the first in line if it is free.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places
-- ARGV[1] the client's inbox, ARGV[2..] holder ids
-- Replies with a list of one item for each holder id: 0 if it waits, its fencing token if it holds
-- the lock, -1 if it does neither: then it is not granted the lock later. The last item is the lock
-- key's ttl in ms, -1 without an expiry, or -2 if the lock is free.
-- Errors: BADFENCE if the fence holds no integer below 2^53. After an error no waiter is granted
-- the lock.
keep()
if not redis.call('LINDEX', KEYS[3], 0) then
  -- Places without a queue have no order.
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
      -- The last token drawn is the holder's. If someone deleted the fence, a new token serves.
      local next, bad = draw()
      if bad then return bad end
      token = tonumber(redis.call('GET', KEYS[2]) or next)
    end
    reply[n - 1] = token
  end
end
reply[#ARGV] = redis.call('PTTL', KEYS[1])
return reply
