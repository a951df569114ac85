-- Shared by scripts that release or renew; prepended to each of them.
-- Writes a lock without changing it: a server that has become a replica then replies READONLY, not
-- "not yours" or "renewed".
local function rewrite(lock)
  local left = redis.call('PTTL', lock)
  local holder = left < 0 and redis.call('GET', lock)
  if left >= 0 then
    -- At least 1 ms: PEXPIRE with 0 deletes the key. As text, as in draw_free.lua.
    redis.call('PEXPIRE', lock, string.format('%.0f', math.max(left, 1)))
  elseif holder then
    redis.call('SET', lock, holder)
  else
    redis.call('DEL', lock)
  end
end

-- Releases the lock if the caller holds it, and wakes its waiters.
-- KEYS[1] lock
-- ARGV[1] holder id, ARGV[2] wake channel
-- Released: 1. Otherwise 0 if the lock is free, or the other holder's value.
-- Only one key: a cluster that migrates a slot rejects calls with two keys if one of them does not
-- exist.
local holder = redis.call('GET', KEYS[1])
local seen = holder
-- A forced release names a value of more than 1088 bytes as the inspect script does: by its first
-- 1088 bytes and the SHA-1 of the whole.
if holder and #ARGV[1] > 1088 and #holder > 1088 then
  seen = string.sub(holder, 1, 1088) .. redis.sha1hex(holder)
end
if seen == ARGV[1] then
  redis.call('DEL', KEYS[1])
  -- A user without the PUBLISH permission can still release.
  redis.pcall('PUBLISH', ARGV[2], ARGV[1])
  return 1
end
rewrite(KEYS[1])
-- A foreign value can be megabytes long. No holder id is longer than this.
return holder and string.sub(holder, 1, 1088) or 0
