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

-- Sets the ttl of the lock if the caller holds it.
-- KEYS[1] lock
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if this may shorten the ttl
-- Renewed: 1. Otherwise 0 if the lock is free, or the other holder's value.
-- Only one key: a cluster that migrates a slot rejects calls with two keys if one of them does not
-- exist.
local holder = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local ours = holder == ARGV[1]
if ours and (ARGV[3] == '1' or (left >= 0 and left < tonumber(ARGV[2]))) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
rewrite(KEYS[1])
if ours then return 1 end
-- A foreign value can be megabytes long. No holder id is longer than this.
return holder and string.sub(holder, 1, 1088) or 0
