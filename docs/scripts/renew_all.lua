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

-- Sets the ttl of several locks if the caller holds all of them.
-- KEYS the locks
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if this may shorten a ttl
-- All renewed: 1. Otherwise none is; the reply is about the first lock that the caller does not
-- hold: 0 if it is free, or the other holder's value.
-- Errors: WRONGTYPE n if the n-th lock is no string. Then none is renewed.
local suspect, other = 1, nil
for n = 1, #KEYS do
  local holder = redis.pcall('GET', KEYS[n])
  if type(holder) == 'table' then
    if string.find(holder.err, 'WRONGTYPE', 1, true) then
      return redis.error_reply('WRONGTYPE ' .. n .. ' the lock is no string')
    end
    return holder
  end
  if holder ~= ARGV[1] then
    -- A foreign value can be megabytes long. No holder id is longer than this.
    suspect, other = n, holder and string.sub(holder, 1, 1088) or 0
    break
  end
end
local written = false
if other == nil then
  for n = 1, #KEYS do
    local left = redis.call('PTTL', KEYS[n])
    if ARGV[3] == '1' or (left >= 0 and left < tonumber(ARGV[2])) then
      redis.call('PEXPIRE', KEYS[n], ARGV[2])
      written = true
    end
  end
end
if written then return 1 end
rewrite(KEYS[suspect])
return other or 1
