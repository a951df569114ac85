-- The fast path of a release of a lock: ends the hold of the caller, and frees the lock if nobody
-- waits in its queue. Prepended to the functions of the queue, which Redis would otherwise create
-- in every call.
-- A user without the permission for LINDEX has no fast path.
do
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- as in take_free.lua
  local is_only_reader
  holder = redis.call('GET', KEYS[1])
  -- A forced release names a longer value in another way.
  if holder == ARGV[1] and #holder <= 1088 then
    out, holder = true, false
  elseif holder == 'leasehold:readers' and KEYS[5] then
    -- The last two: a cluster that migrates the slot refuses access to the set once it is empty.
    local last = redis.call('ZRANGE', KEYS[5], '-2', '-1')
    if last[1] == ARGV[1] and not last[2] then
      is_only_reader, out, holder = true, true, false
    else
      out = redis.call('ZREM', KEYS[5], ARGV[1]) == 1
      if last[2] == ARGV[1] then
        -- The flag ends with the reader that ends last. Another program may have written any score.
        ends_earlier = true
        last = redis.call('ZRANGE', KEYS[5], '-1', '-1', 'WITHSCORES')
        local ends = string.format('%.0f', math.min(last[2], 2 ^ 53))
        redis.call('PEXPIREAT', KEYS[1], ends)
      end
      -- Counts the queue twice. The flag is gone if the leases of all other readers have ended:
      -- waiters must then be told.
      if out and redis.pcall('EXISTS', KEYS[1], KEYS[3], KEYS[3]) == 1 then return 1 end
    end
  end
  if out and not holder then
    front = redis.pcall('LINDEX', KEYS[3], '0')
    if not front then
      if is_only_reader then
        redis.call('DEL', KEYS[1], KEYS[5])
      else
        redis.call('DEL', KEYS[1])
      end
      -- A user without the PUBLISH permission can still release.
      redis.pcall('PUBLISH', ARGV[2], ARGV[1])
      return 1
    end
    if is_only_reader then redis.call('DEL', KEYS[5]) end
    -- A damaged queue, or a user without the permission for LINDEX: `grant` finds that again.
    if front.err then front = nil end
  end
end

