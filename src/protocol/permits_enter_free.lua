-- The fast path of queue_enter.lua for a semaphore: acquires permits that are free, in a queue in
-- which nobody waits, while no permits have ended. Prepended to the functions of the queue, which
-- Redis would otherwise create in every call. Behind it, draw_free.lua draws the token, and
-- permits_take_free.lua takes the permits. Anything unusual is left to the rest of the script.
-- A user without the permission for EXISTS has no fast path.

-- The number of permits that are out, and how many the caller wants.
local used, k
-- The reply to TIME if the caller can have them, the time in ms, and for how many ms the key lasts.
local time, now, left
-- The call draws one token.
local more = 0
do
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- as in take_free.lua
  -- The number of permits that are out, and those that end first: see admit_permits.lua.
  local found = redis.call('ZRANGE', KEYS[1], '0', '1', 'WITHSCORES')
  used = found[4] and found[1] == 'out' and -found[2] or 0
  local n
  k, n = string.match(ARGV[3], '^(%d+)/(%d+)$')
  if k and n - used - k >= 0 and (used > 0 or not found[1])
    and redis.pcall('EXISTS', KEYS[3]) == 0
  then
    -- Before the clock is read, as in later_end.lua.
    left = used > 0 and redis.call('PTTL', KEYS[1]) or 0
    time = redis.call('TIME')
    now = time[1] * 1000 + time[2] / 1000
    if used > 0 and found[4] - now < 0 then time = nil end
  end
end

