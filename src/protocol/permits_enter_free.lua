-- The fast path of queue_enter.lua for a semaphore: acquires permits that are free, in a queue in
-- which nobody waits, while no permits have ended. Prepended to the functions of the queue, which
-- Redis would otherwise create in every call. Anything unusual is left to the rest of the script.
-- A user without the permission for EXISTS has no fast path.
do
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- as in take_free.lua
  -- The number of permits that are out, and those that end first: see admit_permits.lua.
  local found = redis.call('ZRANGE', KEYS[1], '0', '1', 'WITHSCORES')
  local used = found[4] and found[1] == 'out' and -found[2] or 0
  local k, n = string.match(ARGV[3], '^(%d+)/(%d+)$')
  if k and used + k <= tonumber(n) and (used > 0 or not found[1])
    and redis.pcall('EXISTS', KEYS[3]) == 0
  then
    -- Before the clock is read, as in later_end.lua.
    local left = used > 0 and redis.call('PTTL', KEYS[1]) or 0
    local time = redis.call('TIME')
    local seconds, micros = time[1], time[2]
    local now = seconds * 1000 + (micros - micros % 1000) / 1000
    if used == 0 or tonumber(found[4]) >= now then
      -- The first write: a server whose memory is full refuses it, but would allow any after it.
      -- All as in take_free.lua.
      if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
      local token = seconds .. micros
      local fence = redis.pcall('SET', KEYS[2], token, 'KEEPTTL', 'GET')
      if fence and #fence == 16 and fence < token and fence > string.sub(seconds, 1, 7) then
        local till = now + ARGV[2]
        local ends = string.format('%d%03d', till / 1000, till % 1000)
        -- As text if possible.
        local more = used == 0 and k or used + k
        if redis.call('ZADD', KEYS[1], '-' .. more, 'out', ends, ARGV[1]) == 0 then
          -- The network has run the call twice: its first run has counted these permits.
          more = used
          redis.call('ZADD', KEYS[1], '-' .. more, 'out')
        end
        -- The key lasts until the last permit ends.
        if now + left > till then ends = string.format('%.0f', now + left) end
        local kept = redis.pcall('PEXPIREAT', KEYS[1], ends)
        if kept == 1 then return token end
        -- The call fails, so nobody would give these permits back.
        redis.call('ZREM', KEYS[1], ARGV[1])
        if more - k > 0 then
          redis.call('ZADD', KEYS[1], '-' .. more - k, 'out')
        else
          redis.call('DEL', KEYS[1])
        end
        return kept
      end
      -- The rest of the script checks the fence and draws the token.
      if not fence then
        redis.call('DEL', KEYS[2])
      elseif not fence.err then
        redis.call('SET', KEYS[2], fence, 'KEEPTTL')
      end
    end
  end
end

