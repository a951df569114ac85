-- The fast path of queue_enter.lua for a semaphore: acquires permits that are free, in a queue in
-- which nobody waits, while no permits have ended. Prepended to the functions of the queue, which
-- Redis would otherwise create in every call. Anything unusual is left to the rest of the script.
-- Until it grants, it writes nothing.
do
  -- The number of permits that are out, and those that end first: see admit_permits.lua.
  local found = redis.call('ZRANGE', KEYS[1], '0', '1', 'WITHSCORES')
  local used = found[4] and found[1] == 'out' and -found[2] or 0
  local k, n = string.match(ARGV[3], '^(%d+)/(%d+)$')
  if k and used + k <= tonumber(n) and (used > 0 or not found[1])
    and not redis.call('LINDEX', KEYS[3], '0')
  then
    -- Before the clock is read, as in later_end.lua.
    local left = used > 0 and redis.call('PTTL', KEYS[1]) or 0
    local fence = redis.pcall('GET', KEYS[2])
    local time = redis.call('TIME')
    -- The strings would be converted at each use.
    local s, us = time[1] + 0, time[2] + 0
    local now = s * 1000 + (us - us % 1000) / 1000
    -- As text, as in take_free.lua. '%.0f' takes twice as long.
    local token = string.format('%s%06d', time[1], us)
    if (used == 0 or tonumber(found[4]) >= now)
      and (not fence or #fence == #token and fence < token and string.find(fence, '^%d+$'))
    then
      local kept = redis.pcall('SET', KEYS[2], token, 'EX', '90000')
      if kept.err then return kept end
      local till = now + ARGV[2]
      local ends = string.format('%d%03d', till / 1000, till % 1000)
      local more = used + k
      if redis.call('ZADD', KEYS[1], '-' .. more, 'out', ends, ARGV[1]) == 0 then
        -- The network has run the call twice: its first run has counted these permits.
        more = used
        redis.call('ZADD', KEYS[1], '-' .. more, 'out')
      end
      -- The key lasts until the last permit ends.
      if now + left > till then ends = string.format('%.0f', now + left) end
      kept = redis.pcall('PEXPIREAT', KEYS[1], ends)
      if kept == 1 then return {1, s * 1000000 + us} end
      -- The call fails, so nobody would give these permits back.
      redis.call('ZREM', KEYS[1], ARGV[1])
      if more > tonumber(k) then
        redis.call('ZADD', KEYS[1], '-' .. more - k, 'out')
      else
        redis.call('DEL', KEYS[1])
      end
      return kept
    end
  end
end

