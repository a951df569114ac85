-- Releases the lock and passes it to the next waiter, or removes the caller's place from the queue.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places
-- ARGV[1] holder id, ARGV[2] wake channel
-- Released, or removed from the queue: 1. Otherwise 0 if the lock is free, or the other holder's
-- value.
local holder = redis.call('GET', KEYS[1])
local seen = holder
-- A forced release names a longer value as the inspect script does: by its start and its digest.
if holder and #ARGV[1] > 1088 and #holder > 1088 then
  seen = string.sub(holder, 1, 1088) .. redis.sha1hex(holder)
end
if seen == ARGV[1] then
  -- A damaged queue must not keep the lock from being released.
  local ran, next = pcall(grant)
  if not ran or not next then
    redis.call('DEL', KEYS[1])
    -- A user without the PUBLISH permission can still release.
    redis.pcall('PUBLISH', ARGV[2], ARGV[1])
  end
  return 1
end
-- Always a write: a server that has become a replica then replies READONLY, not "not yours".
if redis.call('HDEL', KEYS[4], ARGV[1]) == 1 then
  redis.call('LREM', KEYS[3], 1, ARGV[1])
  return 1
end
-- A foreign value can be megabytes long. No holder id is longer than this.
return holder and string.sub(holder, 1, 1088) or 0
