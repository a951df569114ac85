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

-- Releases those of several locks that the caller holds, and wakes the waiters of each.
-- KEYS the locks
-- ARGV[1] holder id, ARGV[2..] wake channels in the same order
-- All released: 1. Otherwise, for the first lock that the caller did not hold: 0 if it is free, or
-- the other holder's value.
-- Errors: WRONGTYPE n if the n-th lock is no string. The caller's other locks are released.
local mine, other, unreadable = 0, nil, nil
for n = 1, #KEYS do
  local holder = redis.pcall('GET', KEYS[n])
  if type(holder) == 'table' then
    -- Releases the other locks before it returns this error.
    if string.find(holder.err, 'WRONGTYPE', 1, true) then
      holder = redis.error_reply('WRONGTYPE ' .. n .. ' the lock is no string')
    end
    unreadable = unreadable or holder
  elseif holder == ARGV[1] then
    redis.call('DEL', KEYS[n])
    -- A user without the PUBLISH permission can still release.
    redis.pcall('PUBLISH', ARGV[n + 1], ARGV[1])
    mine = mine + 1
  elseif other == nil then
    -- A foreign value can be megabytes long. No holder id is longer than this.
    other = holder and string.sub(holder, 1, 1088) or 0
  end
end
if unreadable then return unreadable end
if mine == #KEYS then return 1 end
if mine == 0 then rewrite(KEYS[1]) end
return other
