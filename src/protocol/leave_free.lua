-- The fast path of a release of a lock: ends the hold of the caller, and frees the lock if nobody
-- waits in its queue. Prepended to the functions of the queue, which Redis would otherwise create
-- in every call.
holder = redis.call('GET', KEYS[1])
-- A forced release names a longer value in another way.
if holder == ARGV[1] and #holder <= 1088 then
  out, holder = true, false
elseif holder == 'leasehold:readers' and KEYS[5] then
  -- The last two: a cluster that migrates the slot refuses access to the set once it is empty.
  local last = redis.call('ZRANGE', KEYS[5], '-2', '-1', 'WITHSCORES')
  out = redis.call('ZREM', KEYS[5], ARGV[1]) == 1
  if out and last[3] then
    -- The flag ends with the reader that ends last. Another program may have written any score.
    ends_earlier = last[3] == ARGV[1]
    local ends = math.min(ends_earlier and last[2] or last[4], 2 ^ 53)
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ends))
  elseif out then
    holder = false
  end
end
-- A user without the permission for LINDEX releases as if nobody waited. A damaged queue must not
-- keep the lock from being released.
if out and not holder then
  local first = redis.pcall('LINDEX', KEYS[3], '0')
  if not first or first.err then
    redis.call('DEL', KEYS[1])
    -- A user without the PUBLISH permission can still release.
    redis.pcall('PUBLISH', ARGV[2], ARGV[1])
    return 1
  end
end

